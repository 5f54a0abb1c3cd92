-- recipe.lua: what was done to a model, as a Lua script: a function model -> model.
local sd, internal = ...

local function quote(s)
    return (("%q"):format(s):gsub("\\\n", "\\n"))
end

local function literal(v, where)
    local t = type(v)
    if t == "string" then return quote(v) end
    if t == "number" then
        if math.type(v) == "integer" then return ("%d"):format(v) end
        if v == math.huge then return "math.huge" end
        if v == -math.huge then return "-math.huge" end
        return ("%.17g"):format(v)
    end
    if t == "boolean" then return tostring(v) end
    if t ~= "table" then internal.fail(where .. ": no value") end
    if v.text then return quote(v.text) end
    if v.file then return "text(" .. quote(v.file) .. ")" end
    if v.ids then return "ids{" .. table.concat(v.ids, ", ") .. "}" end
    if v.model and v.steps == 0 then return "open(" .. quote(v.model) .. ")" end
    if v.model then
        internal.fail(where .. " is a model that was itself made in " .. v.steps ..
            " steps: save it, open the saved one, and use that")
    end
    if v.tensor then
        internal.fail(where .. " holds a tensor's values, which a recipe cannot carry: " ..
            "save(m, folder) keeps the model itself")
    end
    internal.fail(where .. " cannot be written into a recipe")
end

local function script(model)
    local out = {
        "-- A recipe written by sd " .. sd.version .. ": a function model -> model.",
        "--   cut = dofile \"this-file.lua\"; n = cut(open \"folder\")",
    }
    local steps = model:steps()
    if model.path ~= "" then out[#out + 1] = "-- Written from " .. quote(model.path) .. "." end
    out[#out + 1] = 'local sd = require "sd"'
    out[#out + 1] = "local open, text, ids = sd.open, sd.text, sd.ids"
    out[#out + 1] = "return function(model)"
    for i, s in ipairs(steps) do
        local where = ("step %d (%s)"):format(i, s.op)
        local desc = internal.op(s.op)
        if not desc then
            internal.fail(where .. ": the operation is not loaded, so its arguments are unknown; " ..
                "load its plugin (" .. s.version .. ")")
        end
        out[#out + 1] = ("    -- %d: %s, version %s, applied to %s"):format(i, s.op, s.version,
            s.input_hash)
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
        out[#out + 1] = ("    model = sd.%s(%s)"):format(s.op, table.concat(pos, ", "))
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
