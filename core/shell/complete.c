/* complete.c: completion. The search is Lua (lua/complete.lua), by raw access only; here it is
 * bounded in time and an error in it costs nothing but the candidates. */
#include <stdlib.h>
#include <string.h>

#include "shell/shell.h"

enum { MAX_STEPS = 2000000 }; /* VM instructions: some tens of milliseconds */

static void too_long(lua_State *L, lua_Debug *ar) {
    (void)ar;
    lua_pushliteral(L, "completion took too long");
    lua_error(L);
}

static char **to_list(lua_State *L) {
    size_t n = lua_rawlen(L, -1);
    if (!n)
        return NULL;
    char **m = calloc(n + 2, sizeof *m);
    size_t k = 1, common = 0;
    for (size_t i = 1; m && i <= n; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i);
        const char *s = lua_tostring(L, -1);
        if (s && (m[k] = strdup(s))) {
            if (k == 1)
                common = strlen(s);
            size_t c = 0;
            while (c < common && m[k][c] == m[1][c])
                c++;
            common = c;
            k++;
        }
        lua_pop(L, 1);
    }
    if (!m || k == 1) {
        free(m);
        return NULL;
    }
    m[0] = calloc(common + 1, 1);
    if (m[0])
        memcpy(m[0], m[1], common);
    if (k == 2) { /* a single match is its own prefix */
        free(m[1]);
        m[1] = NULL;
    }
    return m;
}

char **shell_complete(void *sh, const char *line, int start, int end, bool *files) {
    shell *s = sh;
    lua_State *L = s->L;
    int top = lua_gettop(L);
    char **m = NULL;
    *files = false;
    lua_getfield(L, LUA_REGISTRYINDEX, "sd_internal");
    lua_getfield(L, -1, "complete");
    lua_pushlstring(L, line, (size_t)end);
    lua_pushinteger(L, start + 1);
    lua_sethook(L, too_long, LUA_MASKCOUNT, MAX_STEPS);
    int st = lua_pcall(L, 2, 1, 0);
    lua_sethook(L, NULL, 0, 0);
    if (st == LUA_OK && lua_istable(L, -1))
        m = to_list(L);
    else if (st == LUA_OK && lua_type(L, -1) == LUA_TSTRING)
        *files = true;
    lua_settop(L, top);
    return m;
}
