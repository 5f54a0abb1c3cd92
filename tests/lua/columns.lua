-- Columns: asked for and usual, their nulls; layers by the algebra of their kind.
local passed, failed = 0, 0
local function test(name, f)
    local ok, err = pcall(f)
    if ok then passed = passed + 1 else
        failed = failed + 1
        print("FAILED " .. name .. ": " .. tostring(err))
    end
end
local function near(a, b, tol)
    assert(a and b and math.abs(a - b) <= tol * math.max(1, math.abs(b)), tostring(a) .. " against " .. tostring(b))
end
local function has(w, name)
    for _, c in ipairs(w.columns) do if c == name then return true end end
    return false
end
local names = { "pr", "entropy", "energy", "stable", "n90", "n95", "n99" }

local t = text "data/introduction.txt"
local g, m = open "data/interim-gpt2", open "data/interim-sd"
local o = { layers = 1, ctx = 128, seqs = 2, draws = 3 }
local function with(extra)
    local r = {}
    for k, v in pairs(o) do r[k] = v end
    for k, v in pairs(extra) do r[k] = v end
    return r
end

test("all: every rank of every matrix with its null and their spread", function()
    local p, w = probe(g, t, with { columns = "all" }), heads(g, { layers = 1, draws = 3, columns = "all" })
    for _, prefix in ipairs { "", "f_", "c_", "m_" } do
        for _, r in ipairs(names) do
            for _, x in ipairs(prefix == "c_" and { p } or { p, w }) do
                local row = x:row(0)
                assert(row[prefix .. r] and row[prefix .. r .. "_null"] and row[prefix .. r .. "_null_sd"],
                    prefix .. r)
                assert(debug.getregistry().sd_internal.help(prefix .. r .. "_null"):find "null")
            end
        end
    end
    local row = p:row(0)
    for _, c in ipairs { "routing", "filtering", "c_share", "phi", "dir_frac" } do
        assert(row[c] and row[c .. "_null"] and row[c .. "_null_sd"], c)
    end
    near(row.routing_null + row.filtering_null, 1, 1e-12)
end)

test("the usual ones agree with all, and cost no more than they are", function()
    local a, b = probe(g, t, with { columns = "all" }), probe(g, t, o)
    assert(has(b, "c_entropy") and not has(b, "m_pr") and not has(b, "c_entropy_null"))
    for _, c in ipairs(b.columns) do
        local x, y = a:row(0)[c], b:row(0)[c]
        if type(y) == "number" then near(x, y, 1e-7) end
    end
    local c = probe(g, t, with { columns = "m_pr, c_e*" })
    assert(has(c, "m_pr_null") and has(c, "c_entropy_null") and has(c, "c_energy_null"))
    assert(not has(c, "m_entropy") and not has(c, "f_pr_null"))
end)

test("an unknown column is named", function()
    local ok, err = pcall(heads, g, { columns = "m_enropy" })
    assert(not ok and tostring(err):find "no column m_enropy: did you mean m_entropy?")
    ok, err = pcall(heads, g, { columns = "c_pr" }) -- there is no centring of weights
    assert(not ok)
end)

test("a column's old name still finds it", function()
    local p = probe(g, t, o)
    assert(p:column "pr_centred":get(0) == p:row(0).c_pr)
    assert(training and not has(p, "pr_centred"))
end)

test("M's singular values from the tensor itself", function()
    local p = probe(g, t, with { columns = "m_*", seqs = 1 })
    local q = capture(g, t, { layer = 1, what = "q", ctx = 128 })
    local k = capture(g, t, { layer = 1, what = "k", ctx = 128 })
    local a = (q:select(1, 0):cast "f64"):matmul(k:select(1, 0):cast "f64":transpose())
    local s = svd(a, { vectors = false })
    local r = ranks(s)
    near(p:head(1, 0).m_pr, r.pr, 1e-6)
    near(p:head(1, 0).m_entropy, r.entropy, 1e-4)
end)

test("a cut at full rank has the columns of the uncut head", function()
    local n = truncate(g, { planes = 64, layers = 1 })
    for _, f in ipairs { function(x) return probe(x, t, with { columns = "m_*" }) end,
        function(x) return heads(x, { layers = 1, columns = "m_*" }) end } do
        local a, b = f(g), f(n)
        for h = 0, 3 do
            for _, c in ipairs { "fro2", "routing", "pr", "entropy", "f_pr", "f_entropy", "max_re", "henrici",
                "m_pr", "m_entropy", "c_pr", "phi", "logit_sd", "kl_uniform", "sigma1" } do
                if has(a, c) then near(b:row(h)[c], a:row(h)[c], 2e-3) end
            end
            assert(b:row(h).status == "ok" and b:row(h).pr_null)
        end
    end
end)

test("a cut head has two values a plane, and its filtering is a number", function()
    local n = truncate(g, { planes = 2, filter = "scalar", layers = 1, calib = t })
    local r = probe(n, t, o):row(0)
    assert(r.pr <= 4 and r.n99 <= 4)
    near(r.f_pr, 128, 1e-9) -- δI over the tokens
    local w = heads(n, { layers = 1 }):row(0)
    assert(w.pr <= 4 and not w.f_pr and w.pr_null <= 4) -- δ is no kernel of the weights
end)

test("kinds without scores say so; a potential is one plane", function()
    local u = new { preset = "nano", kind = "uniform,potential,sd,elu1", n_layer = 4 }
    local ids = {}
    for i = 1, 64 do ids[i] = (i * 7) % 200 end
    for _, w in ipairs { heads(u), probe(u, ids, { ctx = 64, seqs = 1, draws = 2 }) } do
        assert(w:head(0, 0).status == "no scores (uniform)" and not w:head(0, 0).pr)
        assert(w:head(3, 0).status == "no scores (elu1)")
        assert(w:head(2, 0).status == "ok" and w:head(2, 0).pr_null)
        assert(w:head(1, 0).status == "ok" and not w:head(1, 0).pr_null)
    end
    local name = "sd.layers.1.attn.pot"
    u[name] = randn(u[name].shape[1], u[name].shape[2], { seed = 3 })
    local r = probe(u, ids, { ctx = 64, seqs = 1 }):head(1, 0)
    near(r.phi, 1, 1e-6)
    near(r.pr, 2, 1e-6)
    near(heads(u):head(1, 0).pr, 2, 1e-6)
end)

print(("%d passed, %d failed"):format(passed, failed))
