-- reallocate: head dimensions by layer, whole dimensions are no-ops, budgets, baselines, refusals.
local passed, failed = 0, 0
local function test(name, f)
    local ok, err = pcall(f)
    if ok then passed = passed + 1 else
        failed = failed + 1
        print("FAILED " .. name .. ": " .. tostring(err))
    end
end
local function refuses(pattern, f, ...)
    local ok, err = pcall(f, ...)
    assert(not ok, "accepted")
    assert(tostring(err):find(pattern), tostring(err))
end
local m, g = open "data/interim-sd", open "data/interim-gpt2"
local calib = ("It was a bright cold day, and the clocks were striking. "):rep(30)
local line = "He went down to the river with his friends in the morning."
local function worst(a, b, text) return (logits(a, text) - logits(b, text)):abs():max() end
local ids = {}
for i = 1, 24 do ids[i] = (i * 7) % 48 end

test("whole dimensions change nothing", function()
    for _, x in ipairs { m, g } do
        for _, basis in ipairs { "weights", "calibrated" } do
            local n = reallocate(x, { d = 64, what = "qkvo", basis = basis, calib = calib })
            assert(worst(x, n, line) <= 1e-5 and n.n_params == x.n_params)
        end
    end
end)

test("one dimension less of rank-deficient parts changes nothing: scale and biases survive", function()
    -- cut to 32, stored at 32; asked again for 32 in the other basis: the same function
    for _, x in ipairs { m, g, open "tests/ref/models/gpt2", open "tests/ref/models/bert-mlm" } do
        local d = x.config.layer[0].d_qk // 2
        local text = x.config.vocab > 1000 and line or ids
        local n = reallocate(x, { d = d, what = "qkvo" })
        for l = 0, n.config.n_layer - 1 do
            local lc, was = n.config.layer[l], x.config.layer[l]
            assert(lc.d_qk == d and lc.d_v == d and lc.scale == was.scale and lc.kind == was.kind)
        end
        local again = reallocate(n, { d = d, what = "qkvo", basis = "calibrated",
            calib = type(text) == "string" and calib or ids })
        assert(worst(n, again, text) <= 1e-4)
        assert(worst(x, n, text) > 0)
    end
end)

test("a calibrated cut of the outputs is nearer on the calibration text", function()
    for _, x in ipairs { m, g } do
        local o = { d = 16, what = "vo", layers = 0 }
        local plain = reallocate(x, o)
        o.basis, o.calib = "calibrated", calib
        local fit = reallocate(x, o)
        local a = compare(plain, fit, calib):row(0)
        assert(worst(x, fit, calib:sub(1, 500)) < worst(x, plain, calib:sub(1, 500)), "farther")
        assert(a.ppl_b > 0)
    end
end)

test("lists, budgets, ranks", function()
    local n = reallocate(m, { d = "8,8,16,16,32,64" })
    for l, d in ipairs { 8, 8, 16, 16, 32, 64 } do assert(n.config.layer[l - 1].d_qk == d) end
    assert(m.n_params - n.n_params == 2 * 256 * 4 * (6 * 64 - 144))
    n = reallocate(m, { d = "8,24", layers = "1,4" })
    assert(n.config.layer[0].d_qk == 64 and n.config.layer[1].d_qk == 8 and n.config.layer[4].d_qk == 24)
    for _, share in ipairs { 0.5, 0.25 } do
        local b = reallocate(g, { budget = share, what = "qkvo" })
        local saved = (g.n_params - b.n_params) / (6 * 4 * 256 * 256)
        assert(saved >= 1 - share and saved < 1 - share + 0.05, "saved " .. saved)
    end
    local p = probe(m, calib, { ctx = 128, seqs = 1, draws = 0 })
    local r = reallocate(m, { ranks = p, rank = "n99", step = 4 })
    for l = 0, 5 do
        local d = r.config.layer[l].d_qk
        assert(d % 4 == 0 and d >= 4 and d <= 64)
    end
end)

test("the table: baselines at equal parameters", function()
    local w = reallocate_table(m, calib, { d = "8,8,8,16,16,64" })
    assert(#w == 4 and w:row(0).delta == 0 and w:row(0).attn_share == 1)
    for i = 1, 3 do
        local r = w:row(i)
        assert(r.attn_params == w:row(1).attn_params and r.delta_lo <= r.delta and r.delta <= r.delta_hi)
    end
    assert(w:row(2).d == "20,20,20,20,20,20" and w:row(3).d == "64,16,16,8,8,8")
end)

test("43.75% and 87.5%", function()
    local q = reallocate_table(m, line, { d = 8 }):row(1)
    local a = reallocate_table(m, line, { d = 8, what = "qkvo" }):row(1)
    local whole = 6 * 4 * 256 * 256
    local other = reallocate_table(m, line, { d = 64 }):row(0).attn_params - whole
    assert(math.abs((q.attn_params - other) / whole - 0.5625) < 1e-9)
    assert(math.abs((a.attn_params - other) / whole - 0.125) < 1e-9)
end)

test("refused by name, the model untouched", function()
    local before = m.n_params
    refuses("give one of", reallocate, m)
    refuses("give one of", reallocate, m, { d = 8, budget = 0.5 })
    refuses("2 numbers for 6 layers", reallocate, m, { d = "8,8" })
    refuses("more numbers than the 6 layers", reallocate, m, { d = "8,8,8,8,8,8,8" })
    refuses("expected d as a number", reallocate, m, { d = "8,x" })
    refuses("layer 0: 65 dimensions", reallocate, m, { d = 65 })
    refuses("cannot be met", reallocate, m, { budget = 0.01 })
    refuses("calibration text", reallocate, m, { d = 8, basis = "calibrated" })
    refuses("columns layer and n99", reallocate, m, { ranks = ppl(m, line) })
    local u = new { preset = "nano", kind = "sd,uniform" }
    refuses("layer 1 is uniform", reallocate, u, { d = 8 })
    assert(reallocate(u, { d = 8, what = "vo" }).config.layer[1].d_v == 8)
    local r = open "tests/ref/models/llama-gqa"
    refuses("RoPE", reallocate, r, { d = 2 })
    local v = reallocate(r, { d = r.config.layer[0].d_v // 2, what = "vo" })
    assert(nll(v, ids) > 0)
    assert(worst(r, reallocate(r, { d = r.config.layer[0].d_v, what = "vo" }), ids) <= 1e-5)
    assert(m.n_params == before)
end)

test("saved, opened, trained, decoded like any model", function()
    local dir = os.tmpname()
    os.remove(dir)
    local n = reallocate(g, { d = "8,8,16,16,32,64", what = "qkvo" })
    save(n, dir)
    local o = open(dir)
    assert(worst(n, o, line) <= 1e-6)
    assert(heads(o, { draws = 0 }):row(0).pr > 0)
    assert(train(o, { text = calib, steps = 2, batch = 1, ctx = 32, draw = false }).n_params == n.n_params)
    os.execute("rm -rf '" .. dir .. "'")
end)

print(passed .. " passed, " .. failed .. " failed")
