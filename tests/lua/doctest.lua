-- doctest.lua: every example in the help registry runs; whatever lacks documentation fails.
local registry = debug.getregistry()
local docs, of, internal = registry.sd_docs, registry.sd_docs_of, registry.sd_internal
local pass, fail = 0, 0
local function bad(...) fail = fail + 1; print(...) end

local m = open "data/interim-sd"
local g = open "data/interim-gpt2"
local t = text "data/introduction.txt"
local short = t:sub(1, 1500)
local p = probe(m, t, { ctx = 64, seqs = 1, draws = 2 })

-- Everything reachable has documentation.
local function documented(f, where)
    local name = of[f]
    if not (name and docs[name]) then bad("without documentation: " .. where) else pass = pass + 1 end
end
for k, v in pairs(sd) do
    if type(v) == "function" then documented(v, "sd." .. k) end
    if type(v) == "table" then
        for k2, f in pairs(v) do
            if type(f) == "function" then documented(f, "sd." .. k .. "." .. k2) end
        end
    end
end
local classes = { tensor = "tensor:", ["result table"] = "table:", model = "model:", text = "text:",
    tokenizer = "tokenizer:" }
for class, prefix in pairs(classes) do
    for k in pairs(internal.methods(class)) do
        if docs[prefix .. k] then pass = pass + 1 else bad("without documentation: " .. prefix .. k) end
    end
end

local names = {}
for name in pairs(docs) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
    local d = docs[name]
    if d.kind == "op" then d = internal.op(name) end
    for _, field in ipairs { "signature", "summary", "example" } do
        if not d[field] or d[field] == "" then bad(name .. ": no " .. field) end
    end
    if #(d.summary or "") > 100 then bad(name .. ": the summary is longer than a line") end
    -- its own globals, with the models and the text that the header promises
    local env = setmetatable({ m = m, g = g, t = short, p = p }, { __index = _G })
    local f, e = load(d.example or "", "=" .. name, "t", env)
    local ok = f ~= nil
    local t0 = os.clock()
    if f then ok, e = xpcall(f, debug.traceback) end
    if ok then pass = pass + 1 else bad(("example of %s: %s"):format(name, e)) end
    if os.clock() - t0 > 10 then print(("example of %s took %.1f s"):format(name, os.clock() - t0)) end
    local page = internal.help(name)
    if not page:find(d.summary:sub(1, 20), 1, true) then bad(name .. ": its help page lacks the summary") end
end
print(("%d passed, %d failed"):format(pass, fail))
os.exit(fail == 0 and 0 or 1)
