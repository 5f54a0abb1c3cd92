#!/usr/bin/env sd
-- heads.lua: routing and filtering of every head of any number of checkpoints.
--   sd scripts/heads.lua [options] MODEL...
--     --text FILE     measure on this text too (default: data/introduction.txt if it is there)
--     --ctx N         tokens a sequence (default: what the model holds, at most 512)
--     --seqs N        sequences (default 4)     --draws N   draws of each null (default 20)
--     --csv FILE      one row a head, all models
--     --figures DIR   rank per layer and a head map, PNG, for each model
--     --weights-only  no text
-- One row a head goes to the CSV; a summary a model is printed: budgets, rank of the routing at
-- weight level and on tokens beside their nulls and the capacity 2d, and max Re(lambda)/rho beside
-- its null: nearly every random head has an eigenvalue in the right half plane too.
local opt = { seqs = 4, draws = 20 }
local models = {}
do
    local i = 1
    while arg[i] do
        local a = arg[i]
        if a == "--weights-only" then
            opt.weights_only = true
        elseif a:sub(1, 2) == "--" then
            local k = a:sub(3)
            local known = { text = 1, ctx = 1, seqs = 1, draws = 1, csv = 1, figures = 1 }
            if not known[k] or not arg[i + 1] then
                io.stderr:write("heads.lua: ", known[k] and "value missing after " or "unknown option ",
                    a, "\n")
                os.exit(2)
            end
            i = i + 1
            opt[k] = tonumber(arg[i]) or arg[i]
        else
            models[#models + 1] = a
        end
        i = i + 1
    end
end
if #models == 0 then
    io.stderr:write "usage: sd scripts/heads.lua [options] MODEL...\n"
    os.exit(2)
end

local sample
if not opt.weights_only then
    local path = opt.text
    if not path then
        local f = io.open "data/introduction.txt"
        if f then
            f:close()
            path = "data/introduction.txt"
        end
    end
    if path then sample = text(path) end
end

local function median(v)
    if #v == 0 then return nil end
    table.sort(v)
    local n = #v
    return n % 2 == 1 and v[(n + 1) // 2] or (v[n // 2] + v[n // 2 + 1]) / 2
end

-- Values of a column that are there and finite.
local function values(w, column)
    local out = {}
    for _, row in w:rows() do
        local x = row[column]
        if x and x == x then out[#out + 1] = x end
    end
    return out
end

local function share(w, column, test)
    local n, hits = 0, 0
    for _, row in w:rows() do
        local x = row[column]
        if x and x == x then
            n = n + 1
            if test(x) then hits = hits + 1 end
        end
    end
    return n > 0 and hits / n or nil
end

-- The rank a head can have: two a plane, d planes in d dimensions.
local function capacity(layer)
    return 2 * (layer.d_qk and layer.d_qk > 0 and layer.d_qk or layer.planes or 0)
end

local heads_rows, summary = {}, {}
for _, path in ipairs(models) do
    local m = open(path)
    local w = heads(m, { draws = opt.draws })
    local p, why
    if sample then
        local ok, r = pcall(probe, m, sample, { ctx = opt.ctx, seqs = opt.seqs, draws = opt.draws })
        if ok then p = r else why = r end
        if not ok and tostring(r) == "interrupted" then error(r, 0) end
    end
    for _, row in w:rows() do
        local r = { model = m.name, capacity = capacity(m.config.layer[row.layer]) }
        for _, c in ipairs(w.columns) do
            if type(row[c]) ~= "table" then r[c] = row[c] end
        end
        if p then
            local tok = p:head(row.layer, row.head)
            for _, c in ipairs(p.columns) do
                if type(tok[c]) ~= "table" and c ~= "layer" and c ~= "head" then
                    r["tok_" .. c] = tok[c]
                end
            end
        end
        heads_rows[#heads_rows + 1] = r
    end
    local s = {
        model = m.name,
        heads = #w,
        capacity = median((function()
            local v = {}
            for _, row in w:rows() do v[#v + 1] = capacity(m.config.layer[row.layer]) end
            return v
        end)()),
        filtering = median(values(w, "filtering")),
        filters_most = share(w, "filtering", function(x) return x > 0.5 end),
        pr = median(values(w, "pr")),
        pr_null = median(values(w, "pr_null")),
        unstable = share(w, "max_re", function(x) return x > 0 end),
        max_re = median(values(w, "max_re")),
        max_re_null = median(values(w, "max_re_null")),
    }
    if p then
        s.tok_pr = median(values(p, "pr"))
        s.tok_null = median(values(p, "pr_null"))
        s.tok_centred = median(values(p, "c_pr"))
        s.tok_filtering = median(values(p, "filtering"))
        s.tok_unstable = share(p, "max_re", function(x) return x > 0 end)
    end
    summary[#summary + 1] = s
    if why then print(("%s: no token-level measure: %s"):format(m.name, why)) end
    if opt.figures then
        local base = opt.figures .. "/" .. m.name:gsub("[^%w._-]", "_")
        print("figure: " .. plot.rank(p or w, { file = base .. "-rank.png" }))
        print("figure: " .. plot.heads(p or w, { file = base .. "-heads.png" }))
    end
    m:close()
    collectgarbage()
end

local order = { "model", "heads", "capacity", "filtering", "filters_most", "pr", "pr_null", "tok_pr",
    "tok_null", "tok_centred", "tok_filtering", "max_re", "max_re_null", "unstable", "tok_unstable" }
local keep = {}
for _, c in ipairs(order) do
    for _, s in ipairs(summary) do
        if s[c] ~= nil then
            keep[#keep + 1] = c
            break
        end
    end
end
local function only(...)
    local want, out = {}, {}
    for _, c in ipairs { ... } do want[c] = true end
    for _, c in ipairs(keep) do
        if want[c] then out[#out + 1] = c end
    end
    return out
end
local result = tabulate(summary, {
    columns = keep, kind = "models",
    heading = "medians over heads; weights without biases" ..
        (sample and ", tokens of " .. sample.name or "") .. "; filters_most, unstable: share of heads",
})
if opt.csv then
    local first, seen, rest = { "model", "layer", "head", "capacity" }, {}, {}
    for _, c in ipairs(first) do seen[c] = true end
    for _, r in ipairs(heads_rows) do
        for c in pairs(r) do
            if not seen[c] then
                seen[c] = true
                rest[#rest + 1] = c
            end
        end
    end
    table.sort(rest)
    table.move(rest, 1, #rest, #first + 1, first)
    tabulate(heads_rows, { columns = first }):csv(opt.csv)
    print("rows: " .. opt.csv)
end
print(result:select(only("model", "heads", "capacity", "pr", "pr_null", "tok_pr", "tok_null",
    "tok_centred")))
print(tabulate(summary, {
    columns = only("model", "filtering", "filters_most", "tok_filtering", "max_re", "max_re_null",
        "unstable", "tok_unstable"),
    heading = "share of the budget that filters; instability: share of heads with Re(lambda) > 0",
}))
return result
