-- kinds.lua: every attention kind beside S–D, through the operations that take a model: each works
-- with finite numbers or refuses by name.
local t = text "data/introduction.txt"
local pass, fail = 0, 0
local function check(ok, ...) if ok then pass = pass + 1 else fail = fail + 1; print(...) end end
local function model(kind, more)
    local o = { preset = "nano", vocab = 8192, tokenizer = "data/interim-sd/tokenizer.json", kind = kind }
    for k, v in pairs(more or {}) do o[k] = v end
    return new(o)
end
local function finite(x) return x == x and x > -math.huge and x < math.huge end

local scores = { softmax = true, sd = true, ["window window=16"] = true }
local kinds = { "softmax", "sd", "elu1", "elu1 features=skew", "bilinear", "uniform", "potential",
    "potential diag=input", "window window=16", "sd window=16", "sd diag=scalar" }
scores["sd window=16"], scores["sd diag=scalar"] = true, true
local dir = os.tmpname()
os.remove(dir)
for _, kind in ipairs(kinds) do
    local m = model(kind .. ",sd")
    check(finite(nll(m, t)), kind, "nll")
    check(#heads(m, { draws = 2 }) == 4, kind, "heads")
    check(#probe(m, t, { ctx = 32, seqs = 1, draws = 2 }) == 4, kind, "probe")
    check(#stability(m, t) > 0, kind, "stability")
    check(finite(nll(train(m, { text = t, steps = 2, batch = 2, ctx = 32 }), t)), kind, "train")
    save(m, dir)
    check(math.abs(nll(open(dir), t) - nll(m, t)) < 1e-9, kind, "save and open")
    os.execute(("rm -r '%s'"):format(dir))
    for _, o in ipairs { { basis = "calibrated", planes = 2, calib = t }, { filter = "scalar", calib = t },
        { planes = 1 } } do
        local ok, e = pcall(truncate, m, o)
        if scores[kind] then
            check(ok and finite(nll(e, t)), kind, "truncate", e)
        else
            check(not ok and e:find("layer 0 is " .. kind:match "%S+", 1, true), kind, "truncate", e)
        end
        o.layers = "1"
        check(finite(nll(truncate(m, o), t)), kind, "truncate the other")
    end
end

-- A kind without queries and keys has no parameters for them: 2 layers, width 64, 2 heads of 32.
check(model("softmax").n_params - model("uniform").n_params == 2 * 2 * 64 * 64, "parameters of uniform")

for kind, says in pairs { ["window"] = "needs its option window", ["window window=0"] = "must be 1",
    ["softmax window=4"] = "no option 'window'", ["elu1 features=both"] = "qk|skew",
    ["sd diag=input diag=none"] = "given twice", ["windw window=4"] = "window" } do
    local ok, e = pcall(model, kind)
    check(not ok and e:find(says, 1, true), kind, e)
end
print(("%d passed, %d failed"):format(pass, fail))
