-- trace.lua: activations, token by token losses, lens, recall, ablation, changed passes, from Lua.
local pass, fail = 0, 0
local function test(name, f)
    local ok, e = xpcall(f, debug.traceback)
    if ok then pass = pass + 1 else fail = fail + 1; print("FAILED " .. name .. ": " .. tostring(e)) end
end
local function raises(pattern, f, ...)
    local ok, e = pcall(f, ...)
    assert(not ok, "no error")
    assert(tostring(e):find(pattern, 1, true), "wrong error: " .. tostring(e))
end
local function near(a, b, tol)
    assert(math.abs(a - b) <= (tol or 1e-6) * math.max(1, math.abs(b)), a .. " ~= " .. b)
end
local m = open "data/interim-sd"
local t = text("data/introduction.txt"):sub(1, 4000)

test("capture", function()
    local pre = capture(m, t, { what = "resid_pre", layer = 2, ctx = 20 })
    local post = capture(m, t, { what = "resid_post", layer = 1, ctx = 20 })
    assert((pre - post):abs():max() == 0)
    local a = capture(m, t, { what = "attn_out", layer = 1, ctx = 20 })
    local b = capture(m, t, { what = "mlp_out", layer = 1, ctx = 20 })
    local first = capture(m, t, { what = "resid_pre", layer = 1, ctx = 20 })
    assert((post - first - a - b):abs():max() < 1e-4)
    local s = capture(m, t, { what = "scores", layer = 1, ctx = 20 })
    for i = 0, 19 do
        for j = 0, i - 1 do near(s:get(2, i, j), -s:get(2, j, i)) end
        assert(s:get(2, i, i) < 0)
    end
    assert((capture(m, t, { what = "x", ctx = 9 }) - capture(m, t, { what = "attn_in", ctx = 9 })):abs():max() == 0)
    assert(capture(m, t, { what = "final", ctx = 9 }).shape[1] == 9)
    -- a window of a long text is that window
    local ids = t:ids(m)
    local w = capture(m, t, { what = "z", layer = 3, start = 100, ctx = 16 })
    local v = capture(m, { table.unpack(ids, 101, 116) }, { what = "z", layer = 3 })
    assert((w - v):abs():max() == 0)
    raises("start 100000", capture, m, t, { start = 100000 })
    raises("expected layer 0..5, got 6", capture, m, t, { layer = 6 })
    raises("layer 0 (softmax) has no d", capture, open "data/interim-gpt2", "a text", { what = "d" })
    raises("did you mean", capture, m, t, { what = "resid_pr" })
end)

test("tokens", function()
    local a = tokens(m, t, { ctx = 128 })
    local r = ppl(m, t, { ctx = 128, stride = 128 }):row(0)
    assert(#a == r.tokens)
    near(a.meta.nll, r.nll)
    local ids = t:ids(m)
    for _, i in ipairs { 0, 50, #a - 1 } do
        assert(a:row(i).position == i + 1 and a:row(i).id == ids[i + 2])
    end
    local x = logits(m, { table.unpack(ids, 1, 30) })
    local row, target, above, z, e = x[28], ids[30], 0, 0, 0
    for j = 0, m.config.vocab - 1 do
        if row[j] > row[target] then above = above + 1 end
        z = z + math.exp(row[j])
    end
    for j = 0, m.config.vocab - 1 do
        local p = math.exp(row[j]) / z
        if p > 0 then e = e - p * math.log(p) end
    end
    assert(a:row(28).rank == above + 1)
    near(a:row(28).loss, math.log(z) - row[target], 1e-5)
    near(a:row(28).entropy, e, 1e-5)
    raises("at least 2 tokens", tokens, m, { 5 })
end)

-- CASES P06: a model of zeros knows nothing; copies and successors.
test("constant model", function()
    local k = open "tests/ref/models/gpt2"
    for _, name in ipairs(k:names()) do k[name] = k[name] * 0 end
    local v = k.config.vocab
    local a = tokens(k, { 1, 2, 3, 4, 5 })
    for i = 0, #a - 1 do
        near(a:row(i).loss, math.log(v), 1e-6)
        near(a:row(i).entropy, math.log(v), 1e-6)
        assert(a:row(i).rank == 1)
    end
    near(lens(k, { 1, 2, 3, 4, 5 }):row(1).nll, math.log(v), 1e-6)
end)

test("lens and recall", function()
    local a = lens(m, t, { ctx = 100 })
    near(a:row(6).nll, tokens(m, t, { ctx = 100, seqs = 1 }).meta.nll, 1e-6)
    assert(a:row(6).kl == 0 and a:row(6).agree == 1)
    for i = 0, 5 do assert(a:row(i).kl > 0) end
    local r = recall(m, { half = 20, seqs = 3, seed = 2 }):row(0)
    near(r.chance, math.log(m.config.vocab), 1e-12)
    raises("encoder", recall, open "tests/ref/models/bert-mlm")
    raises("at 100", lens, m, t, { ctx = 100, at = 100 })
end)

test("ablate", function()
    local a = ablate(m, t, { what = "mlp", ctx = 128, layers = "1,4" })
    assert(#a == 2 and a:row(0).delta_lo <= a:row(0).delta)
    local b = ablate(m, t, { what = "routing", layers = "3", heads = "1", ctx = 128 })
    assert(#b == 1 and b:row(0).head == 1 and b:row(0).score_rms > 0)
    raises("did you mean", ablate, m, t, { what = "routin" })
end)

test("patch", function()
    local short = t:sub(1, 1200)
    local base = nll(m, short)
    -- the same through numbers, tensors and functions
    local row = tensor(4, 64, { dtype = "f32" })
    local a = nll(patch(m, "z", 0, { layer = 2 }), short)
    assert(math.abs(a - base) > 1e-4)
    near(nll(patch(m, "z", row, { layer = 2 }), short), a, 1e-9)
    near(nll(patch(m, "z", function(x) x:fill(0) end, { layer = 2 }), short), a, 1e-9)
    near(nll(patch(m, "z", function(x, at)
        assert(at.layer == 2 and at.point == "z")
        return x * 0
    end, { layer = 2 }), short), a, 1e-9)
    assert(nll(m, short) == base, "the model given is untouched")
    -- heads one after the other
    local n = m
    for h = 0, 3 do n = patch(n, "z", 0, { layer = 2, head = h }) end
    near(nll(n, short), a, 1e-9)
    near(compare(m, n, short):row(0).delta, a - base, 1e-6)
    -- from another text: the whole stream of layer 3 makes what follows that text's
    local one, two = encode(m, "the first of two texts"), encode(m, "another text of as many")
    assert(#one == #two, #one .. " " .. #two)
    local k = patch(m, "resid_post", capture(m, two, { what = "resid_post", layer = 3 }), { layer = 3 })
    assert((logits(k, one) - logits(m, two)):abs():max() < 1e-4)
    raises("it must be as large as", nll, k, { 1, 2, 3 })
    -- positions
    local e = patch(m, "resid_post", 0, { layer = 0, from = 3, to = 3 })
    local d = (logits(e, one) - logits(m, one)):abs()
    assert(d("0-2"):max() < 1e-5 and d(3):max() > 1e-2)
    -- mean; scores of which the softmax sees nothing
    near(nll(patch(m, "mlp_out", "mean", { layer = 5 }), short, { ctx = 128 }),
        nll(patch(m, "mlp_out", function(x)
            local s = x[0] * 0
            for i = 0, x.shape[1] - 1 do s = s + x[i] end
            return s / x.shape[1]
        end, { layer = 5 }), short, { ctx = 128 }), 1e-6)
    near(nll(patch(m, "scores", function(x) return x + 3 end), short), base, 1e-6)
    -- generate, tokens and ablate see it
    local w = patch(m, "attn_out", 0, { layer = 1 })
    near(tokens(w, short).meta.nll, nll(w, short, { ctx = 256 }), 1e-6)
    local ids = encode(w, "The")
    for _ = 1, 4 do
        local x = logits(w, ids)
        local r, best = x[#ids - 1], 0
        for j = 1, w.config.vocab - 1 do if r[j] > r[best] then best = j end end
        ids[#ids + 1] = best
    end
    assert("The" .. generate(w, "The", { tokens = 4, temperature = 0 }) == decode(w, ids))
end)

test("patches that fail", function()
    local bad = patch(m, "mlp_out", function() error("no such thing", 0) end, { layer = 4 })
    raises("mlp_out of layer 4: no such thing", nll, bad, "some text")
    raises("mlp_out of layer 4", generate, bad, "some text")
    raises("expected a tensor, or nil", nll, patch(m, "q", function() return 3 end), "some text")
    raises("q of layer 0", nll, patch(m, "q", function() return ones(3) end), "some text")
    local self
    self = patch(m, "v", function() nll(self, "x y z") end)
    raises("middle of a pass", nll, self, "some text")
    near(nll(patch(m, "v", function() nll(m, "x y z") end), "some text"), nll(m, "some text"), 1e-9)
    assert(nll(m, "some text") == nll(m, "some text"))
    raises("cannot be saved", save, bad, "build/never")
    raises("no activation \"zz\"", patch, m, "zz", 0)
    raises("layer 0 (softmax) has no d", patch, open "data/interim-gpt2", "d", 0, { layer = 0 })
    raises("expected head 0..3, got 4", nll, patch(m, "z", 0, { head = 4 }), "some text")
    raises("expected a number", patch, m, "z", "median")
    assert(tostring(lineage(bad)):find "saved" or bad:steps()[1].args.saved:find "no")
    collectgarbage()
end)

print(pass .. " passed, " .. fail .. " failed")
os.exit(fail == 0)
