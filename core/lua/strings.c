/* strings.c: string.find, match, gmatch, gsub and rep, as Lua 5.4's own in every answer and error,
 * but interruptible: no hook runs inside a C function, and a pattern such as ("a*"):rep(30) .. "b"
 * can take longer than anyone lives. Patterns are read as they are matched, since Lua finds fault
 * with one only where a match arrives there. */
#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "lua/bind.h"

enum { MAX_CAPTURES = 32, MAX_DEPTH = 200, OPEN = -1, POSITION = -2, LOOK_EVERY = 1 << 20 };

typedef struct matcher {
    lua_State *L;
    const char *s0, *s1, *p1; /* subject; end of the pattern */
    int depth, level;         /* nested calls; captures so far */
    size_t steps;
    struct {
        const char *at;
        ptrdiff_t n; /* length, OPEN or POSITION */
    } cap[MAX_CAPTURES];
} matcher;

static void look(lua_State *L) {
    sd_err e = {0};
    if (sd_check_cancel(&e) != SD_OK)
        sd_lua_raise(L, &e);
}

static inline void tick(matcher *m, size_t n) {
    if ((m->steps += n) >= LOOK_EVERY) {
        m->steps = 0;
        look(m->L);
    }
}

/* ---- single characters ----------------------------------------------------------------------- */

static bool in_class(int c, int class) {
    bool in;
    switch (tolower(class)) {
    case 'a':
        in = isalpha(c);
        break;
    case 'c':
        in = iscntrl(c);
        break;
    case 'd':
        in = isdigit(c);
        break;
    case 'g':
        in = isgraph(c);
        break;
    case 'l':
        in = islower(c);
        break;
    case 'p':
        in = ispunct(c);
        break;
    case 's':
        in = isspace(c);
        break;
    case 'u':
        in = isupper(c);
        break;
    case 'w':
        in = isalnum(c);
        break;
    case 'x':
        in = isxdigit(c);
        break;
    case 'z': /* older than 5.2, still known to 5.4 */
        in = c == 0;
        break;
    default:
        return class == c;
    }
    return isupper(class) ? !in : in;
}

/* p is at '[', close at its ']'. */
static bool in_set(int c, const unsigned char *p, const unsigned char *close) {
    bool in = p[1] != '^';
    for (p += in ? 1 : 2; p < close; p++) {
        if (*p == '%') {
            if (in_class(c, *++p))
                return in;
        } else if (p[1] == '-' && p + 2 < close) {
            if (p[0] <= c && c <= p[2])
                return in;
            p += 2;
        } else if (*p == c) {
            return in;
        }
    }
    return !in;
}

/* Behind the single-character item at p. */
static const char *item_end(matcher *m, const char *p) {
    char c = *p++;
    if (c == '%') {
        if (p == m->p1)
            luaL_error(m->L, "malformed pattern (ends with '%%')");
        return p + 1;
    }
    if (c != '[')
        return p;
    if (*p == '^')
        p++;
    do { /* a ']' that comes first is a member */
        if (p == m->p1)
            luaL_error(m->L, "malformed pattern (missing ']')");
        c = *p++;
        if (c == '%' && p < m->p1)
            p++;
    } while (*p != ']');
    return p + 1;
}

static inline bool one(const matcher *m, const char *s, const char *p, const char *end) {
    if (s >= m->s1)
        return false;
    int c = (unsigned char)*s;
    switch (*p) {
    case '.':
        return true;
    case '%':
        return in_class(c, (unsigned char)p[1]);
    case '[':
        return in_set(c, (const unsigned char *)p, (const unsigned char *)end - 1);
    default:
        return (unsigned char)*p == c;
    }
}

/* ---- matching: each returns the end of the match from s on, or NULL ---------------------------
 */

static const char *match(matcher *m, const char *s, const char *p);

static const char *open_capture(matcher *m, const char *s, const char *p, ptrdiff_t kind) {
    if (m->level >= MAX_CAPTURES)
        luaL_error(m->L, "too many captures");
    m->cap[m->level].at = s;
    m->cap[m->level].n = kind;
    m->level++;
    const char *e = match(m, s, p);
    if (!e)
        m->level--;
    return e;
}

static const char *close_capture(matcher *m, const char *s, const char *p) {
    int i = m->level - 1;
    while (i >= 0 && m->cap[i].n != OPEN)
        i--;
    if (i < 0)
        luaL_error(m->L, "invalid pattern capture");
    m->cap[i].n = s - m->cap[i].at;
    const char *e = match(m, s, p);
    if (!e)
        m->cap[i].n = OPEN;
    return e;
}

/* %bxy: p at x. */
static const char *balanced(matcher *m, const char *s, const char *p) {
    if (p >= m->p1 - 1)
        luaL_error(m->L, "malformed pattern (missing arguments to '%%b')");
    if (s >= m->s1 || *s != p[0])
        return NULL;
    size_t deep = 1;
    for (const char *q = s + 1; q < m->s1; q++) {
        if (*q == p[1]) {
            if (--deep == 0) {
                tick(m, (size_t)(q - s));
                return q + 1;
            }
        } else if (*q == p[0]) {
            deep++;
        }
    }
    tick(m, (size_t)(m->s1 - s));
    return NULL;
}

static const char *same_again(matcher *m, const char *s, int digit) {
    int i = digit - '1';
    if (i < 0 || i >= m->level || m->cap[i].n == OPEN)
        luaL_error(m->L, "invalid capture index %%%d", i + 1);
    size_t n = (size_t)m->cap[i].n;
    tick(m, n < LOOK_EVERY ? n : LOOK_EVERY);
    if ((size_t)(m->s1 - s) >= n && memcmp(m->cap[i].at, s, n) == 0)
        return s + n;
    return NULL;
}

static bool frontier(matcher *m, const char *s, const char *set, const char *end) {
    const unsigned char *a = (const unsigned char *)set, *z = (const unsigned char *)end - 1;
    int before = s == m->s0 ? 0 : (unsigned char)s[-1];
    return !in_set(before, a, z) && in_set((unsigned char)*s, a, z);
}

/* As many as there are, then fewer and fewer. */
static const char *longest(matcher *m, const char *s, const char *p, const char *end) {
    ptrdiff_t n = 0;
    while (one(m, s + n, p, end))
        n++;
    tick(m, (size_t)n);
    for (; n >= 0; n--) {
        const char *e = match(m, s + n, end + 1);
        if (e)
            return e;
    }
    return NULL;
}

static const char *shortest(matcher *m, const char *s, const char *p, const char *end) {
    for (;; s++) {
        const char *e = match(m, s, end + 1);
        if (e)
            return e;
        if (!one(m, s, p, end))
            return NULL;
    }
}

/* A '%' item that is more than one character's class: true, with *s moved on (NULL: no match). */
static bool special(matcher *m, const char **s, const char **p) {
    const char *q = *p;
    if (q[1] == 'b') {
        *s = balanced(m, *s, q + 2);
        *p = q + 4;
    } else if (q[1] == 'f') {
        q += 2;
        if (*q != '[')
            luaL_error(m->L, "missing '[' after '%%f' in pattern");
        *p = item_end(m, q);
        if (!frontier(m, *s, q, *p))
            *s = NULL;
    } else if (isdigit((unsigned char)q[1])) {
        *s = same_again(m, *s, q[1]);
        *p = q + 2;
    } else {
        return false;
    }
    return true;
}

static const char *match(matcher *m, const char *s, const char *p) {
    if (m->depth-- == 0)
        luaL_error(m->L, "pattern too complex");
    while (s && p != m->p1) {
        tick(m, 1);
        if (*p == '(') {
            bool position = p[1] == ')';
            s = open_capture(m, s, p + (position ? 2 : 1), position ? POSITION : OPEN);
            break;
        }
        if (*p == ')') {
            s = close_capture(m, s, p + 1);
            break;
        }
        if (*p == '$' && p + 1 == m->p1) {
            s = s == m->s1 ? s : NULL;
            break;
        }
        if (*p == '%' && special(m, &s, &p))
            continue;
        const char *end = item_end(m, p);
        char many = *end; /* at worst the zero behind the pattern */
        if (many == '*' || many == '-') {
            s = (many == '*' ? longest : shortest)(m, s, p, end);
            break;
        }
        bool fits = one(m, s, p, end);
        if (many == '+') {
            s = fits ? longest(m, s + 1, p, end) : NULL;
            break;
        }
        if (many == '?') {
            const char *e = fits ? match(m, s + 1, end + 1) : NULL;
            if (e) {
                s = e;
                break;
            }
            p = end + 1;
            continue;
        }
        s = fits ? s + 1 : NULL;
        p = end;
    }
    m->depth++;
    return s;
}

static const char *begin(matcher *m, const char *s, const char *p) {
    m->level = 0;
    m->depth = MAX_DEPTH;
    return match(m, s, p);
}

static matcher new_matcher(lua_State *L, const char *s, size_t n, const char *p, size_t np) {
    matcher m;
    m.L = L;
    m.s0 = s;
    m.s1 = s + n;
    m.p1 = p + np;
    m.depth = m.level = 0;
    m.steps = 0;
    return m;
}

/* ---- captures -------------------------------------------------------------------------------- */

/* Capture i of the match s … e; without any, the whole match is the first. */
static void push_capture(matcher *m, int i, const char *s, const char *e) {
    if (i >= m->level) {
        if (i != 0)
            luaL_error(m->L, "invalid capture index %%%d", i + 1);
        lua_pushlstring(m->L, s, (size_t)(e - s));
    } else if (m->cap[i].n == OPEN) {
        luaL_error(m->L, "unfinished capture");
    } else if (m->cap[i].n == POSITION) {
        lua_pushinteger(m->L, m->cap[i].at - m->s0 + 1);
    } else {
        lua_pushlstring(m->L, m->cap[i].at, (size_t)m->cap[i].n);
    }
}

/* s NULL: only what was captured. */
static int push_captures(matcher *m, const char *s, const char *e) {
    int n = m->level == 0 && s ? 1 : m->level;
    luaL_checkstack(m->L, n, "too many captures");
    for (int i = 0; i < n; i++)
        push_capture(m, i, s, e);
    return n;
}

/* ---- the functions --------------------------------------------------------------------------- */

/* Argument i as a start counted from 0; negative ones count from the end. */
static size_t start_at(lua_State *L, int i, size_t n) {
    lua_Integer at = luaL_optinteger(L, i, 1);
    if (at > 0)
        return (size_t)at - 1;
    if (at == 0 || at < -(lua_Integer)n)
        return 0;
    return n + (size_t)at;
}

static bool is_plain(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] && strchr("^$*+?.([%-", p[i]))
            return false;
    return true;
}

static const char *find_plain(lua_State *L, const char *s, size_t n, const char *p, size_t np) {
    if (np == 0)
        return s;
    size_t steps = 0;
    while (n >= np) {
        const char *q = memchr(s, *p, n - np + 1);
        if (!q)
            return NULL;
        size_t same = 1;
        while (same < np && q[same] == p[same])
            same++;
        if (same == np)
            return q;
        if ((steps += same + (size_t)(q - s)) >= LOOK_EVERY) {
            steps = 0;
            look(L);
        }
        n -= (size_t)(q + 1 - s);
        s = q + 1;
    }
    return NULL;
}

static int find_or_match(lua_State *L, bool find) {
    size_t n, np;
    const char *s = luaL_checklstring(L, 1, &n), *p = luaL_checklstring(L, 2, &np);
    size_t from = start_at(L, 3, n);
    if (from > n) {
        lua_pushnil(L);
        return 1;
    }
    if (find && (lua_toboolean(L, 4) || is_plain(p, np))) {
        const char *q = find_plain(L, s + from, n - from, p, np);
        if (!q) {
            lua_pushnil(L);
            return 1;
        }
        lua_pushinteger(L, q - s + 1);
        lua_pushinteger(L, q - s + (lua_Integer)np);
        return 2;
    }
    bool anchor = *p == '^';
    matcher m = new_matcher(L, s, n, p, np);
    p += anchor;
    for (const char *q = s + from; q <= m.s1; q++) {
        const char *e = begin(&m, q, p);
        if (e && find) {
            lua_pushinteger(L, q - s + 1);
            lua_pushinteger(L, e - s);
            return push_captures(&m, NULL, NULL) + 2;
        }
        if (e)
            return push_captures(&m, q, e);
        if (anchor)
            break;
    }
    lua_pushnil(L);
    return 1;
}

static int s_find(lua_State *L) {
    return find_or_match(L, true);
}

static int s_match(lua_State *L) {
    return find_or_match(L, false);
}

/* Upvalues: subject, pattern, where to go on (0-based), end of the last match or -1. */
static int next_match(lua_State *L) {
    size_t n, np;
    const char *s = lua_tolstring(L, lua_upvalueindex(1), &n);
    const char *p = lua_tolstring(L, lua_upvalueindex(2), &np);
    size_t from = (size_t)lua_tointeger(L, lua_upvalueindex(3));
    lua_Integer last = lua_tointeger(L, lua_upvalueindex(4));
    matcher m = new_matcher(L, s, n, p, np);
    for (; from <= n; from++) {
        const char *e = begin(&m, s + from, p);
        if (!e || e - s == last)
            continue;
        lua_pushinteger(L, e - s);
        lua_copy(L, -1, lua_upvalueindex(3));
        lua_replace(L, lua_upvalueindex(4));
        return push_captures(&m, s + from, e);
    }
    return 0;
}

static int s_gmatch(lua_State *L) {
    size_t n;
    luaL_checklstring(L, 1, &n);
    luaL_checkstring(L, 2);
    size_t from = start_at(L, 3, n);
    lua_settop(L, 2);
    lua_pushinteger(L, (lua_Integer)(from > n ? n + 1 : from));
    lua_pushinteger(L, -1);
    lua_pushcclosure(L, next_match, 4);
    return 1;
}

/* The replacement string at 3, its %0 … %9 filled in. */
static void add_template(matcher *m, luaL_Buffer *b, const char *s, const char *e) {
    size_t n;
    const char *r = lua_tolstring(m->L, 3, &n), *end = r + n, *q;
    while ((q = memchr(r, '%', (size_t)(end - r))) != NULL) {
        luaL_addlstring(b, r, (size_t)(q - r));
        q++;
        if (*q == '%') {
            luaL_addchar(b, '%');
        } else if (*q == '0') {
            luaL_addlstring(b, s, (size_t)(e - s));
        } else if (isdigit((unsigned char)*q)) {
            push_capture(m, *q - '1', s, e);
            luaL_tolstring(m->L, -1, NULL); /* a position is a number */
            lua_remove(m->L, -2);
            luaL_addvalue(b);
        } else {
            luaL_error(m->L, "invalid use of '%c' in replacement string", '%');
        }
        r = q + 1;
    }
    luaL_addlstring(b, r, (size_t)(end - r));
}

/* Adds what stands for the match s … e; false: the match itself. */
static bool add_value(matcher *m, luaL_Buffer *b, int type, const char *s, const char *e) {
    lua_State *L = m->L;
    if (type == LUA_TFUNCTION) {
        lua_pushvalue(L, 3);
        lua_call(L, push_captures(m, s, e), 1);
    } else if (type == LUA_TTABLE) {
        push_capture(m, 0, s, e);
        lua_gettable(L, 3);
    } else {
        add_template(m, b, s, e);
        return true;
    }
    if (!lua_toboolean(L, -1)) {
        lua_pop(L, 1);
        luaL_addlstring(b, s, (size_t)(e - s));
        return false;
    }
    if (!lua_isstring(L, -1))
        luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
    luaL_addvalue(b);
    return true;
}

static int s_gsub(lua_State *L) {
    size_t n, np;
    const char *s = luaL_checklstring(L, 1, &n), *p = luaL_checklstring(L, 2, &np), *last = NULL;
    int type = lua_type(L, 3);
    lua_Integer most = luaL_optinteger(L, 4, (lua_Integer)n + 1), done = 0;
    luaL_argexpected(L,
                     type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION ||
                         type == LUA_TTABLE,
                     3, "string/function/table");
    bool anchor = *p == '^', changed = false;
    matcher m = new_matcher(L, s, n, p, np);
    p += anchor;
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    while (done < most) {
        const char *e = begin(&m, s, p);
        if (e && e != last) {
            done++;
            changed = add_value(&m, &b, type, s, e) || changed;
            s = last = e;
        } else if (s < m.s1) {
            luaL_addchar(&b, *s++);
        } else {
            break;
        }
        if (anchor)
            break;
    }
    if (changed) {
        luaL_addlstring(&b, s, (size_t)(m.s1 - s));
        luaL_pushresult(&b);
    } else {
        lua_pushvalue(L, 1);
    }
    lua_pushinteger(L, done);
    return 2;
}

/* The result is doubled in place, and looked up from every few megabytes. */
static int s_rep(lua_State *L) {
    size_t n, nsep;
    const char *s = luaL_checklstring(L, 1, &n), *sep;
    lua_Integer times = luaL_checkinteger(L, 2);
    sep = luaL_optlstring(L, 3, "", &nsep);
    if (times <= 0) {
        lua_pushliteral(L, "");
        return 1;
    }
    if (n + nsep < n || n + nsep > INT_MAX / (size_t)times)
        return luaL_error(L, "resulting string too large");
    size_t unit = n + nsep, total = (size_t)times * unit - nsep;
    luaL_Buffer b;
    char *d = luaL_buffinitsize(L, &b, total);
    memcpy(d, s, n);
    size_t have = n;
    if (times > 1) {
        memcpy(d + n, sep, nsep);
        have = unit;
    }
    while (have < total) { /* `have` is a multiple of the unit, unless it is the end */
        size_t k = have < total - have ? have : total - have, part = (size_t)16 << 20;
        if (k > part && part > unit)
            k = part / unit * unit;
        memcpy(d + have, d, k);
        have += k;
        look(L);
    }
    luaL_pushresultsize(&b, total);
    return 1;
}

void sd_lua_open_strings(lua_State *L) {
    lua_getglobal(L, "string");
    static const luaL_Reg fns[] = {{"find", s_find},     {"match", s_match}, {"gsub", s_gsub},
                                   {"gmatch", s_gmatch}, {"rep", s_rep},     {NULL, NULL}};
    luaL_setfuncs(L, fns, 0);
    lua_pop(L, 1);
}
