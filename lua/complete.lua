-- complete.lua: what Tab offers. Raw access only: completing never runs user code.
local sd, internal = ...
local rawget, type, next, getmt = rawget, type, next, debug.getmetatable
local sub, find, match, gmatch, byte = string.sub, string.find, string.match, string.gmatch, string.byte
local sort = table.sort

local MAX = 500
local keywords = { "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto",
    "if", "in", "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while" }

local function global(name)
    local env = internal.registry(2) -- LUA_RIDX_GLOBALS
    local v = rawget(env, name)
    if v == nil then v = rawget(internal.registry "sd_base", name) end
    if v == nil then v = rawget(sd, name) end
    return v
end

-- The value of "a.b.c" without calling anything, or nil.
local function resolve(path)
    local v
    for name in gmatch(path, "[%a_][%w_]*") do
        if v == nil then
            v = global(name)
        elseif type(v) == "table" then
            v = rawget(v, name)
        elseif name == "config" and internal.class(v) == "model" then
            v = v.config -- ours, and read already
        else
            return nil
        end
        if v == nil then return nil end
    end
    return v
end
internal.resolve = resolve

local function collect(out, seen, t, prefix, only_functions)
    if type(t) ~= "table" then return end
    for k, v in next, t do
        if #out >= MAX then return end
        if type(k) == "string" and not seen[k] and sub(k, 1, #prefix) == prefix and
            find(k, "^[%a_][%w_]*$") and (not only_functions or type(v) == "function") and
            (prefix ~= "" or sub(k, 1, 1) ~= "_") then
            seen[k] = true
            out[#out + 1] = k
        end
    end
end

local fields = {
    ["tensor"] = { "shape", "dtype", "ndim", "n" },
    ["result table"] = { "kind", "columns", "notes", "heading", "meta" },
    ["model"] = { "config", "name", "path", "family", "n_params" },
    ["text"] = { "name" },
    ["tokenizer"] = { "kind", "vocab" },
}

-- Columns of a result table; nothing of one that is closed.
local function columns(w)
    local ok, list = pcall(function() return w.columns end)
    return ok and list or {}
end

local function members(v, prefix, method)
    local out, seen = {}, {}
    if type(v) == "string" then
        collect(out, seen, internal.registry "sd_base".string, prefix, true)
    end
    local class = internal.class(v)
    if class then
        collect(out, seen, internal.methods(class), prefix)
        if not method then
            for _, k in next, fields[class] do
                if sub(k, 1, #prefix) == prefix then out[#out + 1] = k end
            end
            if class == "result table" then
                for _, k in next, columns(v) do
                    if #out < MAX and sub(k, 1, #prefix) == prefix and find(k, "^[%a_][%w_]*$") then
                        out[#out + 1] = k
                    end
                end
            end
        end
    end
    for _ = 1, 8 do -- a table and what it inherits from
        if type(v) ~= "table" then break end
        collect(out, seen, v, prefix, method)
        local mt = getmt(v)
        v = type(mt) == "table" and rawget(mt, "__index") or nil
    end
    sort(out)
    return out
end

-- Scans the line for strings and brackets; returns the open string's quote and start, and the
-- stack of open brackets, each with what stands before it.
local function scan(line)
    local stack, i, n = {}, 1, #line
    while i <= n do
        local c = sub(line, i, i)
        if c == '"' or c == "'" then
            local start = i
            i = i + 1
            while i <= n and sub(line, i, i) ~= c do
                if sub(line, i, i) == "\\" then i = i + 1 end
                i = i + 1
            end
            if i > n then return stack, start end
        elseif find(c, "[({%[]") then
            stack[#stack + 1] = { c, match(sub(line, 1, i - 1), "([%a_][%w_.:]*)%s*$"), i }
        elseif find(c, "[)}%]]") then
            stack[#stack] = nil
        end
        i = i + 1
    end
    return stack, nil
end

-- Arguments of the function whose options table we are in: op descriptor or documentation.
local function options(stack)
    local top, below = stack[#stack], stack[#stack - 1]
    if not top or top[1] ~= "{" then return nil end
    local callee = top[2] or below and below[1] == "(" and below[2]
    local f = callee and not find(callee, ":", 1, true) and resolve(callee)
    local name = f and internal.registry "sd_docs_of"[f]
    if not name and callee then
        local method = match(callee, "([%a_][%w_]*)$")
        name = method
    end
    if not name then return nil end
    local op = internal.op(name)
    if op then return op.args end
    local doc = internal.registry "sd_docs"[name]
    if not doc or not doc.options then return nil end
    local args = {}
    for k, choices in gmatch(doc.options, "([%w_]+)=(%S*)") do
        args[#args + 1] = { name = k, choices = choices ~= "" and choices or nil }
    end
    return args
end

-- ---- inside strings ---------------------------------------------------------------------------
-- What the innermost call is: its function's or method's name, the value it is about (the object, or
-- the first argument), and whether we are in its options table.
local function call_of(line, stack, before)
    local top, below = stack[#stack], stack[#stack - 1]
    local callee, open, inside = match(before, "([%a_][%w_.:]*)%s*$"), nil, false
    if not callee and top and top[1] == "(" then
        callee, open = top[2], top[3]
    elseif not callee and top and top[1] == "{" then
        inside = true
        if top[2] then callee = top[2]
        elseif below and below[1] == "(" then callee, open = below[2], below[3] end
    end
    if match(before, "=%s*$") and top and top[1] == "{" and not callee then inside = true end
    if not callee then return nil end
    local object, method = match(callee, "^([%a_][%w_.]*):([%a_][%w_]*)$")
    if object then return method, resolve(object), inside, open end
    local first = open and match(sub(line, open + 1), "^%s*([%a_][%w_.]*)%s*[,)]")
    return callee, first and resolve(first), inside, open
end

local column_methods = { sort = true, select = true, column = true, array = true, doc = true, group = true,
    join = true, where = true, eval = true }
local column_options = { column = true, columns = true, x = true, y = true, by = true, group = true,
    label = true, value = true, size = true, error = true }
local aggregates = { "mean", "median", "min", "max", "sum", "sd", "count", "first", "last", "quantile 0.9" }

local function topics()
    local out = {}
    for name in next, internal.registry "sd_docs" do out[#out + 1] = name end
    return out
end

local function presets()
    local ok, list = pcall(function() return sd.presets():array "preset" end)
    return ok and list or {}
end

local function layers(m)
    local ok, n = pcall(function() return m.config.n_layer end)
    local out = { "all" }
    for i = 0, ok and n - 1 or -1 do out[#out + 1] = tostring(i) end
    return out
end

-- Candidates for the string that is open, or nil: files.
local function in_string(line, stack, before)
    local name, value, inside = call_of(line, stack, before)
    local class = internal.class(value)
    local option = match(before, "([%a_][%w_]*)%s*=%s*{?%s*$") or
        match(before, "([%a_][%w_]*)%s*=%s*{[^{}]*,%s*$")
    if name == "help" then return topics() end
    if option then
        if name == "group" and class == "result table" then return aggregates end
        if class == "result table" and column_options[option] then return columns(value) end
        if option == "preset" then return presets() end
        if option == "kind" or option == "kinds" then return internal.kinds and internal.kinds() end
        if option == "layers" or option == "layer" then
            return class == "model" and layers(value) or nil
        end
        return nil
    end
    if class == "result table" and (column_methods[name] or inside) then return columns(value) end
    if class == "model" and not inside then return internal.methods "model".names(value) end
    return nil
end

-- line: the text up to the cursor; start: where the word to replace begins. A table of candidates,
-- or the string "files".
function internal.complete(line, start)
    line = sub(line, 1, 4096)
    local word = sub(line, start)
    local stack, quote = scan(line)
    if quote then
        local before = sub(line, 1, quote - 1)
        local text = sub(line, quote + 1)
        local base = match(before, "([%a_][%w_.]*)%s*%[%s*$")
        if base then
            local v = resolve(base)
            if internal.class(v) == "model" then
                local out = {}
                for _, n in next, internal.methods "model".names(v) do
                    if #out < MAX and sub(n, 1, #text) == text then out[#out + 1] = sub(n, #text - #word + 1) end
                end
                sort(out)
                return out
            end
            local out = {}
            collect(out, {}, v, text)
            sort(out)
            return out
        end
        local list = in_string(line, stack, before)
        if list then
            -- the whole string so far, or the last name of an expression
            local out, seen, name = {}, {}, match(text, "[%a_][%w_]*$") or ""
            for _, how in next, { text, name } do
                for _, n in next, list do
                    if #out < MAX and not seen[n] and sub(n, 1, #how) == how and #how >= #word then
                        seen[n] = true
                        out[#out + 1] = sub(n, #how - #word + 1)
                    end
                end
                if #out > 0 then
                    sort(out)
                    return out
                end
            end
        end
        local opt = match(before, "([%a_][%w_]*)%s*=%s*$")
        local args = opt and options(stack)
        for _, a in next, args or {} do
            if a.name == opt and a.choices then
                local out = {}
                for c in gmatch(a.choices, "[^|]+") do
                    if sub(c, 1, #text) == text then out[#out + 1] = c end
                end
                return out
            end
        end
        return "files"
    end
    local base, sep = match(sub(line, 1, start - 1), "([%a_][%w_.]*)%s*([.:])%s*$")
    if base then
        local v = resolve(base)
        if v == nil then return {} end
        return members(v, word, sep == ":")
    end
    local out, seen = {}, {}
    local args = options(stack)
    if args and find(sub(line, 1, start - 1), "[{,]%s*$") then
        for _, a in next, args do
            if not a.required and sub(a.name, 1, #word) == word then out[#out + 1] = a.name .. "=" end
        end
        if #out > 0 then
            sort(out)
            return out
        end
    end
    local opt = match(sub(line, 1, start - 1), "([%a_][%w_]*)%s*=%s*$")
    if opt and args then
        for _, a in next, args do
            if a.name == opt and a.kind == "true or false" then return { "true", "false" } end
        end
    end
    collect(out, seen, internal.registry(2), word)
    collect(out, seen, internal.registry "sd_base", word)
    collect(out, seen, sd, word)
    for _, k in next, keywords do
        if word ~= "" and sub(k, 1, #word) == word then out[#out + 1] = k end
    end
    sort(out)
    return out
end
