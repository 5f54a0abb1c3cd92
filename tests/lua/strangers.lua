-- strangers.lua: text of a model somebody else made reaches Lua scripts, messages and the terminal.
local pass, fail = 0, 0
local function test(name, f)
    local ok, e = xpcall(f, debug.traceback)
    if ok then pass = pass + 1 else fail = fail + 1; print("FAILED " .. name .. ": " .. tostring(e)) end
end
if not sd.truncate then print "0 passed, 0 failed" return end

local dir = os.tmpname()
os.remove(dir)
save(truncate(open "data/interim-sd", { layers = "0-3", planes = 2 }), dir)
local function slurp(path) local f <close> = assert(io.open(path, "rb")) return f:read "a" end
local function spit(path, s) local f <close> = assert(io.open(path, "wb")) f:write(s) end
local config = slurp(dir .. "/config.json")
-- The weights keep a copy of the configuration, which would be used instead: a stranger has none.
local weights = slurp(dir .. "/model.safetensors")
local renamed, once = weights:gsub('"sd_config"', '"no_config"', 1)
assert(once == 1)
spit(dir .. "/model.safetensors", renamed)

local function json(s)
    return (s:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end))
end

-- The model with one string of its lineage replaced; nil when opening refuses it.
local function with(field, value)
    local text, n = config:gsub('("' .. field .. '": )"[^\n]*"(,?)\n', function(k, c)
        return k .. '"' .. json(value) .. '"' .. c .. "\n"
    end)
    assert(n == 1, field .. " found " .. n .. " times")
    spit(dir .. "/config.json", text)
    local ok, m = pcall(open, dir)
    return ok and m or nil, not ok and tostring(m)
end

local attack = "PWNED = true"
local hostile = {
    "1.0\n" .. attack .. " --", "1.0\r" .. attack .. " --", "]]\n" .. attack, "]]" .. attack .. "--[[",
    '"\n' .. attack .. " --", "' .. (function() " .. attack .. " end)() .. '", "\\\n" .. attack,
    '\\"\n' .. attack, "\u{202e}" .. attack, "\u{2028}" .. attack, "\27[2J" .. attack,
    "x\xc2\x85" .. attack,
}

local function harmless(m)
    local ok, script = pcall(recipe.text, m)
    if not ok then
        assert(not tostring(script):find("[\n\27]"), "a message of one line: " .. tostring(script))
        return
    end
    assert(not script:find("[\27\r]") and not script:find "\u{202e}" and not script:find "\u{2028}")
    local env = setmetatable({}, { __index = _G })
    local f = assert(load(script, "recipe", "t", env))
    f()
    assert(rawget(env, "PWNED") == nil and rawget(_G, "PWNED") == nil, script)
    for line in script:gmatch "[^\n]+" do -- nothing stands on a line of its own
        assert(not line:find "^%s*PWNED", line)
    end
end

for _, field in ipairs { "version", "input_hash", "op" } do
    test("lineage " .. field, function()
        for _, s in ipairs(hostile) do
            local m, refusal = with(field, s)
            if m then harmless(m) else assert(not refusal:find("[\n\27]"), refusal) end
        end
    end)
end

local function args(s) return with("args", s) end
local function refuses(s, pattern)
    local m, refusal = args(s)
    local ok, e = false, refusal
    if m then ok, e = pcall(recipe.text, m) end
    assert(not ok, "written: " .. s)
    assert(not m or tostring(e):find(pattern), tostring(e))
end

test("arguments", function()
    for _, s in ipairs(hostile) do
        for _, a in ipairs {
            '{"layers":"%s","planes":2}', '{"layers":{"text":"%s"}}', '{"layers":{"file":"%s"}}',
            '{"layers":{"model":"%s","steps":0}}', '{"%s":1}', '{"layers":{"ids":["%s"]}}',
        } do
            local m = args((a:gsub("%%s", function() return json(s) end)))
            if m then harmless(m) end
        end
    end
    refuses('{"layers":{"ids":["1} os.exit() --"]}}', "id 1 is not an integer")
    refuses('{"layers":{"ids":[1,null,2]}}', "gaps")
    refuses('{"layers":{"text":[1]}}', "not a string")
    refuses('{"layers":{"model":"x","steps":"1\\n"}}', "unknown steps")
    refuses('{"planez":2}', 'no argument "planez": did you mean planes')
    refuses('{"planes":2,"\\u202e":2}', 'no argument "\\u{202e}"')
    local m = args '{"layers":"0-3","planes":2}'
    assert(recipe.text(m):find('layers = "0-3"', 1, true))
end)

test("an operation that makes no model", function()
    for _, op in ipairs { "save", "heads", "tokenize" } do
        local m = with("op", op)
        if m then
            local ok, e = pcall(recipe.text, m)
            assert(not ok and tostring(e):find "not a model", tostring(e))
        end
    end
end)

test("floats of config.json as written", function()
    local m = new { preset = "nano", n_layer = 1 }
    local out = os.tmpname()
    os.remove(out)
    save(m, out)
    local text = slurp(out .. "/config.json")
    assert(text:find "1e%-05" or text:find "1e%-06", text)
    assert(not text:find "%d%.?%d*000000000%d*[1-9]" and not text:find "99999999", text)
    os.execute(("rm -r '%s'"):format(out))
end)

os.execute(("rm -r '%s'"):format(dir))
print(("%d passed, %d failed"):format(pass, fail))
