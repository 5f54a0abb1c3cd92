-- show.lua: how a value prints itself at the prompt. Raw access only; nothing here calls user code
-- except a __tostring the user wrote for that purpose.
local sd, internal = ...
local type, next, tostring, rawlen, rawget = type, next, tostring, rawlen, rawget
local sort, concat, rep = table.sort, table.concat, string.rep
local format, gsub, match, sub = string.format, string.gsub, string.match, string.sub
local getinfo, getlocal, getmetatable = debug.getinfo, debug.getlocal, debug.getmetatable
local mtype, charlen = math.type, utf8.len

local MAX_DEPTH, MAX_ENTRIES = 3, 60

local function number(x)
    if x ~= x then return "nan" end
    return tostring(x)
end

local function signature(f)
    local docs, of = internal.registry "sd_docs", internal.registry "sd_docs_of"
    local name = of[f]
    local doc = name and docs[name]
    if doc then
        if doc.kind == "op" then doc = internal.op(name) or doc end
        return (doc.signature or name) .. "\n  " .. (doc.summary or "")
    end
    local i = getinfo(f, "Su")
    if i.what == "C" then
        local base = internal.registry "sd_base"
        for k, v in next, base do
            if v == f then return k .. ": a function of Lua" end
            if type(v) == "table" and k ~= "_G" and k ~= "package" then
                for k2, v2 in next, v do
                    if v2 == f then return k .. "." .. k2 .. ": a function of Lua" end
                end
            end
        end
        return tostring(f)
    end
    local args = {}
    for k = 1, i.nparams do args[k] = getlocal(f, k) end
    if i.isvararg then args[#args + 1] = "..." end
    return format("function(%s)  -- %s:%d", concat(args, ", "), i.short_src, i.linedefined)
end

local function quoted(s)
    local n = #s
    if n > 200 then
        n = 200
        while n > 196 and match(sub(s, n + 1, n + 1), "[\x80-\xBF]") do n = n - 1 end
    end
    return internal.quote(sub(s, 1, n)) .. (n < #s and "..." or "")
end

-- A text as a terminal may be given it: of escape sequences only the colours of a drawing stay.
local function visible(s)
    local out, pos = {}, 1
    while true do
        local a, e = s:find("\27%[[%d;]*m", pos)
        out[#out + 1] = internal.visible(sub(s, pos, (a or 0) - 1))
        if not a then return concat(out) end
        out[#out + 1] = sub(s, a, e)
        pos = e + 1
    end
end

local function first_line(s)
    local l = match(s, "^[^\n]*")
    return #l < #s and visible(l) .. " ..." or visible(l)
end

local value

local function key(k)
    if type(k) == "string" then
        return match(k, "^[%a_][%w_]*$") and k or "[" .. quoted(k) .. "]"
    end
    return "[" .. (type(k) == "number" and number(k) or first_line(tostring(k))) .. "]"
end

local order = { number = 1, string = 2, boolean = 3 }
local function before(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then return (order[ta] or 9) < (order[tb] or 9) end
    if ta == "number" or ta == "string" then return a < b end
    return tostring(a) < tostring(b)
end

local function plain(t, depth, seen, width)
    if seen[t] then return "{<cycle>}" end
    if depth > MAX_DEPTH then return next(t) == nil and "{}" or "{...}" end
    seen[t] = true
    local items, n, more = {}, rawlen(t), 0
    for i = 1, n do
        if #items >= MAX_ENTRIES then more = n - i + 1; break end
        items[#items + 1] = value(rawget(t, i), depth + 1, seen, width - 4)
    end
    local keys = {}
    for k in next, t do
        if not (mtype(k) == "integer" and k >= 1 and k <= n) then keys[#keys + 1] = k end
    end
    sort(keys, before)
    for i, k in ipairs(keys) do
        if #items >= MAX_ENTRIES then more = more + #keys - i + 1; break end
        items[#items + 1] = key(k) .. " = " .. value(rawget(t, k), depth + 1, seen, width - 4)
    end
    if more > 0 then items[#items + 1] = format("... %d more", more) end
    seen[t] = nil
    if #items == 0 then return "{}" end
    local line = "{" .. concat(items, ", ") .. "}"
    if not line:find "\n" and (charlen(line) or #line) <= width then return line end
    -- short scalars fill lines, others take one each
    local pad, out, cur = rep(" ", 2), {}, ""
    for i, s in ipairs(items) do
        s = gsub(s, "\n", "\n" .. pad) .. (i < #items and "," or "")
        local both = cur == "" and s or cur .. " " .. s
        if cur ~= "" and (both:find "\n" or (charlen(both) or #both) > width - 2 or
                #keys > 0 and more == 0 and #items <= 20) then
            out[#out + 1] = pad .. cur
            cur = s
        else
            cur = both
        end
    end
    out[#out + 1] = pad .. cur
    return "{\n" .. concat(out, "\n") .. "\n}"
end

function value(v, depth, seen, width)
    local t = type(v)
    if t == "number" then return number(v) end
    if t == "string" then return quoted(v) end
    if t == "function" then return first_line(signature(v)) end
    if t == "table" then
        local mt = getmetatable(v)
        if type(mt) == "table" and rawget(mt, "__tostring") then return first_line(tostring(v)) end
        return plain(v, depth, seen, width)
    end
    return first_line(tostring(v))
end

-- At most one screen, unless it is asked for (print(x), w:print()).
local function fit(s)
    local _, rows = internal.size()
    if rows <= 0 then return s end
    local limit = math.max(8, rows - 2)
    local pos, n = 1, 0
    while true do
        local e = s:find("\n", pos, true)
        if not e then break end
        n = n + 1
        if n == limit then
            local _, rest = gsub(sub(s, e + 1), "\n", "\n")
            return sub(s, 1, e) .. format("... %d more lines: print(_) shows all", rest + 1)
        end
        pos = e + 1
    end
    local width = internal.size()
    if #s > width * limit then
        return sub(s, 1, width * limit) .. format("\n... %d more bytes: print(_) shows all",
            #s - width * limit)
    end
    return s
end

function internal.show(v)
    local t = type(v)
    if t == "string" then return visible(fit(v)) end
    if t == "number" then return number(v) end
    if t == "function" then return signature(v) end
    if t == "table" then
        local mt = getmetatable(v)
        if type(mt) == "table" and rawget(mt, "__tostring") then return fit(tostring(v)) end
        local width = internal.size()
        return fit(plain(v, 1, {}, width))
    end
    return fit(tostring(v))
end

-- print: as Lua's, but what has no text of its own (rows, plain tables, a config) shows its content.
function sd.print(...)
    local n, out = select("#", ...), {}
    for i = 1, n do
        local v = (select(i, ...))
        local mt = type(v) == "table" and getmetatable(v)
        local own = type(mt) == "table" and (rawget(mt, "__tostring") or rawget(mt, "__name"))
        out[i] = type(v) == "table" and not own and plain(v, 1, {}, (internal.size())) or tostring(v)
    end
    io.stdout:write(concat(out, "\t"), "\n")
end
internal.registry "sd_base".print = sd.print
internal.doc {
    name = "print", fn = sd.print, kind = "function", signature = "print(...)",
    summary = "Prints values; tables show what they hold.",
    example = "print({1, 2, layer = 0}, 'text')",
}
