-- cascade.lua: an S-D model without norm and its standard twin, trained on one corpus from one script,
-- with the ranks of every layer measured on the way (claim C4 beside its twin).
--
--   sd scripts/cascade.lua CORPUS.txt [OUTDIR [STEPS]]
--
-- CORPUS.txt: what scripts/corpus.sh makes, or any text (a line `<|endoftext|>` parts documents).
-- OUTDIR (build/cascade) gets tokenizer, token files and one training folder a model; started again,
-- the script goes on where it stopped. STEPS (1500) updates of 2,048 tokens each.
local corpus, out, steps = arg[1], arg[2] or "build/cascade", math.tointeger(arg[3] or 1500)
if not corpus or not steps then
    error("usage: sd scripts/cascade.lua CORPUS.txt [OUTDIR [STEPS]]", 0)
end
local function exists(p)
    local f = io.open(p)
    if f then f:close() end
    return f ~= nil
end

if not exists(out .. "/tokenizer.json") then
    train_tokenizer(corpus, { vocab = 8192, out = out .. "/tokenizer.json" })
end
if not exists(out .. "/corpus.val.bin.json") then
    print(tokenize(corpus, { tokenizer = out .. "/tokenizer.json", out = out .. "/corpus", holdout = 0.01, seed = 1 }))
end

local twins = {
    { name = "sd", title = "S-D, no norm", family = "sd", kind = "sd", norm = "none" },
    { name = "standard", title = "standard, layer norm", family = "gpt2", kind = "softmax", norm = "layernorm" },
}
for _, w in ipairs(twins) do
    local dir = out .. "/" .. w.name
    if exists(dir .. "/checkpoint.safetensors") then
        w.model = resume(dir, { draw = false })
    else
        local fresh = new { preset = "mini", family = w.family, kind = w.kind, norm = w.norm,
            tokenizer = out .. "/tokenizer.json", seed = 1 }
        w.model = train(fresh, {
            data = out .. "/corpus.train.bin", val = out .. "/corpus.val.bin", dir = dir,
            steps = steps, batch = 8, ctx = 256, lr = 6e-4, seed = 1,
            eval_every = math.max(1, steps // 10), measure_every = math.max(1, steps // 15),
            measure_seqs = 2, measure_draws = 10,
        })
    end
end

for _, w in ipairs(twins) do
    local dir = out .. "/" .. w.name
    local log, c = training(dir), training(dir, { which = "cascade" })
    local last = log:row(#log - 1)
    print(string.format("\n%s: %.2fM parameters, %d tokens, held-out loss %.3f, perplexity %.1f",
        w.title, w.model.n_params / 1e6, last.tokens, last.val_loss, math.exp(last.val_loss)))
    print(c:filter(function(r) return r.step == last.step end))
    for _, column in ipairs { "c_pr", "pr" } do
        local file = out .. "/cascade-" .. w.name .. "-" .. column .. ".png"
        plot.cascade(c, { column = column, file = file, title = w.title .. ": rank of routing over training" })
        print("figure: " .. file)
    end
end
