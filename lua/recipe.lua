-- recipe.lua: what was done to a model, as a Lua script: a function model -> model.
local sd, internal = ...

-- A model's lineage is a stranger's text: everything of it enters the script through quote() or is a
-- number, a boolean or the name of a registered operation or of its argument.
local quote = internal.quote

local function number(v)
    if math.type(v) == "integer" then return ("%d"):format(v) end
    if v ~= v then return "0/0" end
    if v == math.huge then return "math.huge" end
    if v == -math.huge then return "-math.huge" end
    for digits = 15, 17 do -- the shortest that reads back the same
        local s = ("%." .. digits .. "g"):format(v)
        if tonumber(s) == v then return s end
    end
end

local function literal(v, where)
    local function fail(why) internal.fail(where .. why) end
    local t = type(v)
    if t == "string" then return quote(v) end
    if t == "number" then return number(v) end
    if t == "boolean" then return tostring(v) end
    if t ~= "table" then fail ": no value" end
    local function name(k)
        if type(v[k]) ~= "string" then fail((": its %s is not a string"):format(k)) end
        return quote(v[k])
    end
    if v.text ~= nil then return name "text" end
    if v.file ~= nil then return "text(" .. name "file" .. ")" end
    if v.ids ~= nil then
        if type(v.ids) ~= "table" then fail ": its ids are not a list" end
        local out = {}
        for i, id in ipairs(v.ids) do
            if math.type(id) ~= "integer" then fail((": id %d is not an integer"):format(i)) end
            out[i] = number(id)
        end
        for k in pairs(v.ids) do
            if not out[k] then fail ": its ids have gaps" end
        end
        return "ids{" .. table.concat(out, ", ") .. "}"
    end
    if v.model ~= nil then
        if v.steps == 0 then return "open(" .. name "model" .. ")" end
        fail((" is a model that was itself made in %s steps: save it, open the saved one, and " ..
            "use that"):format(math.type(v.steps) == "integer" and v.steps or "unknown"))
    end
    if v.tensor ~= nil then
        fail(" holds a tensor's values, which a recipe cannot carry: save(m, folder) keeps the " ..
            "model itself")
    end
    fail " cannot be written into a recipe"
end

-- An argument this program does not know would change the result if it were left out.
local function check_arguments(s, desc, where)
    if type(s.args) ~= "table" then internal.fail(where .. ": its arguments are not an object") end
    local known = {}
    for i, a in ipairs(desc.args) do known[i] = a.name; known[a.name] = true end
    for k in pairs(s.args) do
        if not known[k] then
            local near = internal.suggest(tostring(k), known)
            internal.fail(("%s: %s has no argument %s%s (it was recorded by version %s)"):format(where,
                s.op, quote(tostring(k)), near and ": did you mean " .. near .. "?" or "",
                quote(s.version)))
        end
    end
end

local function call(s, where)
    local desc = internal.op(s.op)
    if not desc then
        internal.fail(where .. ": the operation is not loaded, so its arguments are unknown; " ..
            "load its plugin (" .. s.version .. ")")
    end
    if desc.makes ~= "a model" then
        internal.fail(where .. ": " .. s.op .. " makes " .. desc.makes .. ", not a model")
    end
    check_arguments(s, desc, where)
    local pos, named, first = {}, {}, true
    for _, a in ipairs(desc.args) do
        local v = s.args[a.name]
        if a.kind == "a model" and first then
            first = false
            pos[#pos + 1] = "model"
        elseif v ~= nil then
            local text = literal(v, where .. ": " .. a.name)
            if a.required then
                pos[#pos + 1] = text
            else
                named[#named + 1] = a.name .. " = " .. text
            end
        end
    end
    if #named > 0 then pos[#pos + 1] = "{" .. table.concat(named, ", ") .. "}" end
    return ("    model = sd.%s(%s)"):format(desc.name, table.concat(pos, ", "))
end

local function script(model)
    local out = {
        "-- A recipe written by sd " .. sd.version .. ": a function model -> model.",
        "--   cut = dofile \"this-file.lua\"; n = cut(open \"folder\")",
    }
    if model.path ~= "" then out[#out + 1] = "-- Written from " .. quote(model.path) .. "." end
    out[#out + 1] = 'local sd = require "sd"'
    out[#out + 1] = "local open, text, ids = sd.open, sd.text, sd.ids"
    out[#out + 1] = "return function(model)"
    for i, s in ipairs(model:steps()) do
        local line = call(s, ("step %d (%s)"):format(i, s.op))
        out[#out + 1] = ("    -- %d: %s, version %s, applied to %s"):format(i, s.op,
            quote(s.version), quote(s.input_hash))
        out[#out + 1] = line
    end
    out[#out + 1] = "    return model"
    out[#out + 1] = "end"
    return table.concat(out, "\n") .. "\n"
end

local function want_model(m, what)
    if internal.class(m) ~= "model" then
        internal.fail(what .. ": a model expected, got a " .. type(m))
    end
end

sd.recipe = {}

function sd.recipe.text(m)
    want_model(m, "recipe.text")
    return script(m)
end
internal.doc {
    name = "recipe.text", fn = sd.recipe.text, kind = "function", signature = "recipe.text(model)",
    summary = "The script that makes a model again from the one it was made of.",
    example = "assert(load(recipe.text(m)))",
}

function sd.recipe.save(path, m)
    if type(path) ~= "string" then internal.fail "recipe.save(file, model): a file name expected" end
    want_model(m, "recipe.save")
    internal.write(path, script(m))
    return path
end
internal.doc {
    name = "recipe.save", fn = sd.recipe.save, kind = "function",
    signature = "recipe.save(file, model)",
    summary = "Writes what was done to a model as a script: a function model -> model.",
    details = "The script names each operation with its version, its arguments and the hash of " ..
        "what it was applied to. dofile(file) gives the function.",
    example = "f = os.tmpname()\nrecipe.save(f, m)\nassert(dofile(f)(m))\nos.remove(f)",
}
