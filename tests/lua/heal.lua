-- heal.lua: healing after surgery, its control, and what is refused.
local passed, failed = 0, 0
local function test(name, f)
    local ok, e = xpcall(f, debug.traceback)
    if ok then passed = passed + 1 else failed = failed + 1; print("FAILED " .. name .. ": " .. tostring(e)) end
end
local function refused(pattern, f, ...)
    local ok, e = pcall(f, ...)
    assert(not ok, "no error")
    assert(tostring(e):find(pattern), "wrong error: " .. tostring(e))
end
local function same(a, b, name)
    return (a[name] - b[name]):norm() == 0
end

local m, t = open "data/interim-sd", text "data/introduction.txt"
local first, second = t:sub(1, 12000), t:sub(12001, 16000)
local cut = truncate(m, { planes = 0, layers = "1,4" })
local short = { text = first, steps = 3, batch = 2, ctx = 64, lr = 1e-3 }
local function with(extra)
    local o = {}
    for k, v in pairs(short) do o[k] = v end
    for k, v in pairs(extra) do o[k] = v end
    return o
end

test("the same numbers as train, and the input untouched", function()
    local before = nll(cut, second)
    local a = heal(cut, short)
    local b = train(cut, { text = first, steps = 3, batch = 2, ctx = 64, lr = 1e-3, seed = 1 })
    assert(nll(a, second) == nll(b, second))
    assert(nll(cut, second) == before and nll(a, second) ~= before)
    assert(lineage(a):row(1).op == "heal")
end)

test("operated: the layers that differ and nothing else", function()
    local a = heal(cut, with { original = m, layers = "operated" })
    for _, w in ipairs(cut:tensors()) do
        local l = w.name:match "layers%.(%d+)%."
        local changed = not same(a, cut, w.name)
        if changed then assert(l == "1" or l == "4", w.name) end
    end
    assert(not same(a, cut, "layers.1.mlp.w1") and not same(a, cut, "layers.4.attn.wo"))
    local b = heal(cut, with { layers = "1,4" })
    assert(nll(a, second) == nll(b, second))
end)

test("a teacher pulls toward the original", function()
    local a = heal(cut, with { original = m, teacher_weight = 1 })
    local b = heal(cut, short)
    assert(nll(a, second) ~= nll(b, second))
end)

test("the table: four rows, the control zero by definition", function()
    local o = with { steps = 12, lr = 3e-4 }
    local w = heal_table(cut, m, with { steps = 12, lr = 3e-4, holdout = second, eval_ctx = 64 })
    local r = {}
    for i = 0, 3 do r[w:row(i).model] = w:row(i) end
    assert(r.original.tokens == 0 and r.control.tokens == 12 * 2 * 64 and r.healed.tokens == r.control.tokens)
    assert(r.control.change == 0 and not r.control.delta)
    for _, k in ipairs { "original", "operated", "healed" } do
        assert(r[k].delta_lo <= r[k].delta and r[k].delta <= r[k].delta_hi, k)
        assert(r[k].recall >= 0 and r[k].recall_nll > 0)
    end
    assert(r.healed.delta < r.operated.delta)
    local control = train(m, { text = first, steps = 12, batch = 2, ctx = 64, lr = 3e-4, seed = 1 })
    local d = compare(control, heal(cut, o), second, { ctx = 64, seed = 1 }):row(0)
    assert(math.abs(r.healed.delta - d.delta) < 1e-12 and math.abs(r.healed.delta_lo - d.delta_lo) < 1e-12)
end)

test("a heal is replayed to the same bytes", function()
    local f, dir = os.tmpname(), os.tmpname()
    os.remove(dir)
    local src = text "data/introduction.txt"
    local a = heal(truncate(m, { planes = 1, layers = 2 }),
        { original = m, layers = "operated", text = src, steps = 2, batch = 1, ctx = 32, teacher_weight = 0.5 })
    recipe.save(f, a)
    local b = dofile(f)(m)
    for _, w in ipairs(a:tensors()) do assert(same(a, b, w.name), w.name) end
    os.remove(f)
end)

test("refused by name, the model untouched", function()
    refused("give text= to train on", heal, cut)
    refused("text= and data= are both given", heal, cut, with { data = "x.bin" })
    refused('layers="operated" needs the model before surgery', heal, cut, with { layers = "operated" })
    refused("no layer of .- differs from the original", heal, m, with { layers = "operated", original = m })
    refused("teacher_weight = 0.5 needs the teacher", heal, cut, with { teacher_weight = 0.5 })
    refused("give the text to be scored", heal_table, cut, m, short)
    refused("layer", heal, cut, with { layers = "0-9" })
    refused("it was not made from it", heal, cut, with { original = new { preset = "nano" } })
    refused("steps", heal, cut, with { steps = 0 })
    refused("tokens", heal, cut, { text = "too short", steps = 1, ctx = 256 })
    refused("x.bin", heal, cut, { data = "x.bin" })
end)

test("a non-finite loss stops by name", function()
    local bad = truncate(m, { planes = 1, layers = 0 })
    local broken = edit(bad, "layers.2.attn.wv", bad["layers.2.attn.wv"] * (0 / 0))
    refused("parameter layer 2 wv holds a non%-finite value", heal, broken, short)
end)

print(("%d passed, %d failed"):format(passed, failed))
