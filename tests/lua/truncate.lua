-- truncate: how much stays, what it costs, how far the scores are off; rotary bands.
local passed, failed = 0, 0
local function test(name, f)
    local ok, err = pcall(f)
    if ok then passed = passed + 1 else
        failed = failed + 1
        print("FAILED " .. name .. ": " .. tostring(err))
    end
end
local function near(a, b, tol, what)
    assert(math.abs(a - b) <= tol * math.max(1e-300, math.abs(b)), (what or "") .. " " .. a .. " against " .. b)
end
local function refuses(pattern, f, ...)
    local ok, err = pcall(f, ...)
    assert(not ok, "accepted")
    assert(tostring(err):find(pattern), tostring(err))
end
local m, g = open "data/interim-sd", open "data/interim-gpt2"
local calib = ("It was a bright cold day, and the clocks were striking. "):rep(40)
local held = ("He went down to the river with his friends in the morning. "):rep(40)

local function worst(a, b, text)
    return (logits(a, text) - logits(b, text)):abs():max()
end

test("all of the energy is every plane, none is no routing", function()
    assert(worst(m, truncate(m, { energy = 1 }), "a short text of a few words") <= 1e-5)
    local p = truncate_plan(m, { energy = 0 })
    for i = 0, #p - 1 do assert(p:row(i).kept == 0 and p:row(i).energy == 0) end
    assert(worst(truncate(m, { energy = 0 }), truncate(m, { planes = 0 }), "a short text") <= 1e-6)
end)

test("energy keeps the fewest planes that hold the share", function()
    local p, less = truncate_plan(m, { energy = 0.9 }), truncate_plan(m, { energy = 0.9, heads = "1" })
    for i = 0, #p - 1 do
        local r = p:row(i)
        assert(r.energy >= 0.9 and r.kept >= 1 and r.kept < 64)
        local fewer = truncate_plan(m, { planes = tostring(r.kept - 1), layers = r.layer }):row(r.head)
        assert(fewer.energy < 0.9)
        assert(less:row(i).kept == (r.head == 1 and r.kept or 64))
    end
    local n = truncate(m, { energy = 0.9 })
    for l = 0, 5 do
        local widest = 0
        for i = 0, #p - 1 do if p:row(i).layer == l then widest = math.max(widest, p:row(i).kept) end end
        assert(n.config.layer[l].d_qk == widest)
    end
end)

test("a budget is kept, by stored parameters, and spent on the strongest planes", function()
    for _, share in ipairs { 0.5, 0.1, 0.03 } do
        local n, p = truncate(m, { budget = share }), truncate_plan(m, { budget = share })
        local before, after = 0, 0
        for i = 0, #p - 1, 4 do before, after = before + p:row(i).params, after + p:row(i).params_cut end
        assert(after <= share * before and after > 0.8 * share * before)
        assert(m.n_params - n.n_params == before - after)
    end
    -- the layers' weakest kept plane is not far below another layer's strongest lost one
    local p = truncate_plan(m, { budget = 0.1 })
    local widths = {}
    for i = 0, #p - 1 do widths[p:row(i).kept] = true end
    assert(next(widths, next(widths)), "every layer got the same")
end)

test("sensitivity moves the budget to where the loss is", function()
    local w = heads(m, { draws = 0 })
    refuses("columns layer, head and delta", truncate, m, { budget = 0.1, sensitivity = w })
    refuses("goes with budget", truncate, m, { planes = 2, sensitivity = w })
end)

test("amounts that cannot be, refused by name", function()
    refuses("give one", truncate, m, { energy = 0.5, planes = 2 })
    refuses("cannot be met", truncate, m, { budget = 0 })
    refuses("cannot be met.*filtering is stored apart", truncate, g, { budget = 0.5 })
    refuses("no rotary positions", truncate, m, { bands = 1 })
    refuses("calibration text", truncate, m, { planes = 2, basis = "calibrated" })
end)

test("the error of a calibrated cut is its closed form on the calibration text, and the least", function()
    for _, x in ipairs { m, g } do
        local o = { planes = 2, basis = "calibrated", calib = calib, ctx = 64 }
        local plan, cut, plain = truncate_plan(x, o), truncate(x, o), truncate(x, { planes = 2 })
        local e = routing_error(x, cut, calib, { ctx = 64 })
        local f = routing_error(x, plain, calib, { ctx = 64 })
        for i = 0, #e - 1 do
            near(e:row(i).error_rms, plan:row(i).error, 1e-4, "closed form")
            assert(e:row(i).error_rms <= f:row(i).error_rms * (1 + 1e-6), "plain is better")
            assert(e:row(i).relative < 1)
        end
        local other = routing_error(x, cut, held, { ctx = 64 })
        assert(other:row(0).error_rms > 0 and #other == #e)
        local same = routing_error(x, x, calib)
        for i = 0, #same - 1 do assert(same:row(i).relative < 1e-6) end
    end
end)

test("the error of a plain cut is its closed form over the weights", function()
    -- 8.1 speaks of the kernel; the planes left out are those of heads()
    local plan, w = truncate_plan(m, { planes = 3 }), heads(m, { draws = 0 })
    for i = 0, #plan - 1 do
        local sum, planes = 0, w:row(i).planes
        for p = 4, #planes do sum = sum + 2 * planes[p] ^ 2 end
        near(plan:row(i).error, math.sqrt(sum), 1e-6)
    end
end)

local text_ids = {}
for i = 1, 24 do text_ids[i] = (i * 7) % 48 end
for _, name in ipairs { "llama-gqa", "neox", "llama-bias", "qwen2" } do
    test("rotary bands commute: " .. name, function()
        local r = open("tests/ref/models/" .. name)
        local rp = truncate_plan(r, { energy = 1 })
        local all = rp:row(0).planes
        refuses("frequency bands commute", truncate, r, { planes = 1 })
        refuses("expected bands 0%.%.", truncate, r, { bands = all + 1 })
        local whole = truncate(r, { bands = all })
        local x = text_ids
        assert(worst(r, whole, x) <= 1e-5)
        local cut = truncate(r, { bands = all - 1 })
        assert(worst(r, cut, x) > 0)
        -- what stays is untouched, what goes is whole bands, the same for the heads of a key head
        local lc = r.config.layer[0]
        for l = 0, r.config.n_layer - 1 do
            local p = truncate_plan(r, { bands = all - 1, layers = l })
            assert(#p == lc.n_kv_head)
            for i = 0, #p - 1 do assert(p:row(i).kept == all - 1 and p:row(i).energy < 1) end
        end
        assert(nll(cut, x) > 0)
        if name:find "llama" then
            local w, rows = cut["model.layers.0.self_attn.k_proj.weight"], 0
            for i = 0, w.shape[1] - 1 do if w[i]:abs():max() == 0 then rows = rows + 1 end end
            assert(rows == 2 * lc.n_kv_head, rows .. " dimensions of keys are gone")
        end
    end)
end

print(passed .. " passed, " .. failed .. " failed")
