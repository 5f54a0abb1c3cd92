-- bindings.lua: the Lua side against plain Lua arithmetic and against its own promises.
local pass, fail = 0, 0
local function test(name, f)
    local ok, e = xpcall(f, debug.traceback)
    if ok then pass = pass + 1 else fail = fail + 1; print("FAILED " .. name .. ": " .. tostring(e)) end
end
local function raises(pattern, f, ...)
    local ok, e = pcall(f, ...)
    assert(not ok, "no error")
    assert(tostring(e):find(pattern), "wrong error: " .. tostring(e))
end
local function near(a, b, tol)
    assert(math.abs(a - b) <= (tol or 1e-12) * math.max(1, math.abs(b)), a .. " ~= " .. b)
end

test("construction", function()
    local a = tensor(2, 3)
    assert(a.dtype == "f64" and a.n == 6 and a:sum() == 0)
    assert(ones(2, { dtype = "f32" }).dtype == "f32")
    assert(zeros { 2, 3 }.n == 6)
    assert(tensor(3, { dtype = "i32" })[0] == 0)
    assert(math.type(tensor(3, { dtype = "i32" })[0]) == "integer")
    assert(tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "f16" }):sum() == 10)
    assert(tensor {}.n == 0)
    raises("unknown option", tensor, 2, { dtyp = "f32" })
    raises("did you mean dtype", tensor, 2, { dtyp = "f32" })
    raises("equal length", tensor, { { 1 }, { 1, 2 } })
    raises("equal length", tensor, { { 1, "x" } })
    raises("negative", tensor, -1)
    raises("at most 6", tensor, 1, 1, 1, 1, 1, 1, 1)
    raises("", tensor, 1 << 40, 1 << 40)
    assert(#arange(0, 1, 0.1) == 11)
end)

test("indices", function()
    local a = arange(0, 23):reshape(2, 3, 4)
    assert(a:get(1, 2, 3) == 23 and a[1][2][3] == 23 and a[-1][-1][-1] == 23)
    assert(a(1, "1-2", "0-1").shape[1] == 2)
    assert(a("all", 0):sum() == 0 + 1 + 2 + 3 + 12 + 13 + 14 + 15)
    assert(a(1, 2, 3) == 23)
    raises("expected index 0..1, got 2", function() return a[2] end)
    raises("count from 0", function() return a[2] end)
    raises("expected 0..2", function() return a(0, "1-3") end)
    raises("no field", function() return a.nosuch end)
    a[0] = 1
    assert(a[0]:sum() == 12)
    a[1] = tensor { { 1, 1, 1, 1 }, { 2, 2, 2, 2 }, { 3, 3, 3, 3 } }
    assert(a[1]:sum() == 24)
    raises("", function() a[0] = ones(7) end)
    local v = a[1][2]
    v:fill(9)
    assert(a:get(1, 2, 0) == 9, "views share memory")
end)

test("arithmetic", function()
    local a, b = randn(3, 4, { seed = 1 }), randn(4, { seed = 2 })
    local c = a * b - a / 2 + 1
    for i = 0, 2 do
        for j = 0, 3 do near(c:get(i, j), a:get(i, j) * b[j] - a:get(i, j) / 2 + 1) end
    end
    assert((2 - ones(2))[0] == 1 and (1 / tensor { 4 })[0] == 0.25 and (-ones(1))[0] == -1)
    assert((ones(2, { dtype = "f32" }) + 1).dtype == "f32")
    raises("", function() return ones(3) + ones(4) end)
    raises("", function() return ones(3) + "x" end)
end)

test("matmul in blocks", function()
    local a, b = randn(700, 300, { seed = 3 }), randn(300, 500, { seed = 4 })
    local c = matmul(a, b)
    for _, ij in ipairs { { 0, 0 }, { 699, 499 }, { 350, 17 } } do
        near(c:get(ij[1], ij[2]), (a[ij[1]] * b:select(1, ij[2])):sum(), 1e-10)
    end
    local big = matmul(randn(1500, 1200, { seed = 5 }), randn(1200, 1500, { seed = 6 }))
    near(big:get(1499, 3), (randn(1500, 1200, { seed = 5 })[1499] *
        randn(1200, 1500, { seed = 6 }):select(1, 3)):sum(), 1e-9)
    raises("", matmul, ones(2, 3), ones(2, 3))
end)

test("decompositions, small and in a child process", function()
    for _, n in ipairs { 1, 2, 7, 350 } do
        local a = randn(n, n, { seed = n })
        local u, s, vt = svd(a)
        assert(matmul(u * s, vt):close_to(a, { tol = 1e-10 }), "svd " .. n)
        local q, r = qr(a)
        assert(matmul(q, r):close_to(a, { tol = 1e-10 }), "qr " .. n)
        local h = (a + a:T()) / 2
        local w, v = eigh(h)
        assert(matmul(v * w, v:T()):close_to(h, { tol = 1e-10 }), "eigh " .. n)
        local b = (a - a:T()) / 2
        local sg, x, y = skew(b)
        if #sg > 0 then
            assert(matmul(b, x:T()):T():close_to(y * sg:reshape(-1, 1), { tol = 1e-10 }), "skew " .. n)
        end
        local re, im = eig(a)
        near(re:sum(), a:diag():sum(), 1e-9)
        near(im:sum(), 0, 1e-9)
    end
    assert(#svd(ones(0, 3), { vectors = false }) == 0)
    raises("non%-finite", svd, { { 1, 0 / 0 }, { 1, 2 } })
    raises("not symmetric", eigh, { { 1, 2 }, { 3, 4 } })
    raises("not skew", skew, { { 1, 2 }, { 3, 4 } })
    raises("square", eig, ones(2, 3))
    raises("unknown option", svd, ones(2, 2), { vector = false })
end)

test("statistics", function()
    local a = tensor { { 1, 2, 3 }, { 4, 5, 6 } }
    assert(a:mean() == 3.5 and a:sum(1)[1] == 15 and a:max(0)[2] == 6 and a:min(-1)[1] == 4)
    near(a:norm(), math.sqrt(91))
    assert(tensor { 0 / 0, 1 }:stats().n_nan == 1)
    local r = ranks({ 4, 2, 1, 1 })
    near(r.entropy, 3.363586, 1e-6)
    near(r.energy, 2.276322, 1e-6)
    near(r.pr, 1.766423, 1e-6)
    near(r.stable, 1.375)
    raises("finite", ranks, { 1, 0 / 0 })
end)

test("closed handles", function()
    local a = ones(3)
    a:close()
    a:close()
    raises("closed", function() return a[0] end)
    raises("closed", matmul, a, a)
    assert(tostring(a):find "closed")
    do
        local b <close> = ones(2)
    end
    local m = open "data/interim-sd"
    m:close()
    raises("closed", heads, m)
    raises("closed", function() return m.config end)
end)

test("memory is counted by storage", function()
    collectgarbage()
    collectgarbage()
    local before = memory().tensors
    local a = ones(1000, 100)
    local v1, v2, v3 = a[1], a:T(), a:slice(0, 5, 9)
    assert(memory().tensors - before == 800000, "views cost nothing")
    a = nil
    collectgarbage()
    collectgarbage()
    assert(memory().tensors - before == 800000, "a view keeps its parent")
    assert(v1[0] == 1 and v2:get(0, 999) == 1)
    v1, v2, v3 = nil, nil, nil
    collectgarbage()
    collectgarbage()
    assert(memory().tensors == before)
end)

test("models", function()
    local m = open "data/interim-sd"
    assert(m.config.n_layer == 6 and m.config.n_head == 4 and m.config.layer[5].d_qk == 64)
    assert(m.family == "sd" and m.name == "interim-sd")
    local names = m:names()
    local name = m:tensors()[1].name
    assert(names[1] == name)
    local w = m[name]
    local n = edit(m, name, w * 2)
    assert((n[name] - w * 2):norm() == 0 and (m[name] - w):norm() == 0, "the input is untouched")
    assert(#n:steps() == 1 and n:steps()[1].op == "edit" and #m:steps() == 0)
    local alias = m
    m[name] = w * 3
    assert((m[name] - w * 3):norm() == 0 and #m:steps() == 1)
    assert(alias == m)
    raises("did you mean", function() return m[name:sub(1, -2) .. "q"] end)
    raises("did you mean", function() m[name:sub(1, -2) .. "q"] = w end)
    raises("no tensor", function() return m.nosuchthing end)
    raises("expected layer 0..5", m.part, m, "wq", 6)
    raises("parts are", m.part, m, "wz", 0)
    raises("values, which a recipe cannot carry", recipe.text, n)
    assert(#n:parts(0) > 5)
end)

test("text and ids", function()
    local m = open "data/interim-sd"
    local t = text "data/introduction.txt"
    local s = t:string()
    assert(#t == #s and t.name == "data/introduction.txt")
    local ids_ = t:ids(m)
    assert(decode(m, ids_) == s, "byte-level text survives")
    assert(#encode(m, t) == #ids_)
    local part = t:sub(1, 400)
    near(nll(m, part), nll(m, s:sub(1, 400)))
    near(nll(m, part), nll(m, part:ids(m)))
    near(nll(m, part), nll(m, ids(part:ids(m))))
    near(nll(m, part), nll(m, tensor(part:ids(m))))
    local rows = m.config.vocab
    local padded = new { preset = "nano", tokenizer = "data/interim-sd", vocab = rows + 8 }
    assert(decode(padded, { rows + 3 }) == "<id " .. rows + 3 .. ">", "a row without a token")
    raises(tostring(rows + 8), decode, padded, { rows + 8 })
    raises(tostring(rows), decode, m:tokenizer(), { rows })
    raises("not a token id", ids, { 1.5 })
    raises("", nll, m, ids { 1, 99999 })
    raises("", text, "no-such-file")
    raises("", nll, m, true)
end)

test("arguments of operations", function()
    local m = open "data/interim-sd"
    raises("unknown option", heads, m, { drws = 3 })
    raises("draws", heads, m, { drws = 3 })
    raises("model", heads, 5)
    raises("model", heads)
    raises("takes 1 argument", heads, m, 5)
    raises("named", heads, m, { 5 })
    raises("layer", heads, m, { layers = "0-6" })
    assert(#heads(m, { layers = 2, draws = 1 }) == 4)
    assert(#heads(m, { layers = { 0, 5 }, draws = 1 }) == 8)
    assert(#heads { model = m, layers = "1-2", draws = 1 } == 8)
    if sd.new then -- one string or one entry a layer
        assert(new { preset = "nano", n_layer = 2, d_head = { 8, 16 } }.config.layer[1].d_qk == 16)
    end
    raises("draws", heads, m, { draws = "many" })
    raises("draws", heads, m, { draws = -1 })
end)

test("tables", function()
    local m = open "data/interim-sd"
    local w = heads(m, { draws = 1 })
    assert(#w == 24 and w:row(0).layer == 0 and w:row(-1).layer == 5)
    raises("count from 0", function() return w[1] end)
    raises("expected row 0..23", w.row, w, 24)
    local n = 0
    for i, row in w:rows() do
        assert(i == n and row.pr == w:row(i).pr)
        n = n + 1
    end
    assert(n == 24)
    local s = w:sort("pr", { desc = true })
    for i = 1, 23 do assert(s:row(i - 1).pr >= s:row(i).pr) end
    near(s.pr:sum(), w.pr:sum(), 1e-12)
    assert(#w:filter(function(r) return r.head == 1 end) == 6)
    local two = w:select("layer", "pr")
    assert(#two.columns == 2)
    raises("did you mean", w.column, w, "entrpy")
    local csv = two:csv()
    assert(csv:match "^layer,pr\r?\n0,")
    local file = os.tmpname()
    w:csv(file)
    local f = io.open(file)
    assert(f:read "a" == w:csv())
    f:close()
    os.remove(file)
    assert(w:json():sub(1, 2) == "[{")
    assert(not w:json():find "planes" and w:json { vectors = true }:find "planes")
    assert(#w:head(3, 1).planes > 0 and w:head(3, 1).layer == 3)
    raises("no row", w.head, w, 6, 0)
    assert(w:doc "pr" ~= "" and w:doc():find "pr")
    assert(#w:summary() == 6)
end)

test("plugins", function()
    raises("", plugin.load, "tests/lua/bindings.lua")
    raises("", plugin.load, "no-such-file.so")
    for _, row in plugin.list():rows() do assert(row.ops + row.kinds > 0) end
    if plugin.list().meta and sd.truncate then
        local t = sd.truncate
        plugin.unload "truncate"
        assert(sd.truncate == nil and rawget(_G, "truncate") == nil)
        raises("unloaded", t, open "data/interim-sd")
        plugin.load(SD_TRUNCATE or os.getenv "SD_BUILD" and os.getenv "SD_BUILD" .. "/plugins/truncate.so"
            or "build/plugins/truncate.so")
        assert(sd.truncate)
    end
end)

test("recipes replay", function()
    if not sd.truncate then return end
    local m = open "data/interim-sd"
    local n = truncate(m, { layers = "0-3", planes = 2 })
    local file = os.tmpname()
    recipe.save(file, n)
    local f = dofile(file)
    local again = f(m)
    local s = text("data/introduction.txt"):sub(1, 500)
    assert(nll(again, s) == nll(n, s), "the same bytes")
    assert(#again:steps() == #n:steps() and tostring(again:steps()[1].args.planes) == '2')
    os.remove(file)
end)

test("errors name the user's line", function()
    local ok, e = pcall(function() return recipe.text(5) end)
    assert(not ok and e:find "^tests/lua/bindings.lua:%d+: recipe.text: a model expected", e)
    ok, e = pcall(function() return open "no-such-folder" end)
    assert(not ok and e:find "^tests/lua/bindings.lua:%d+: ", e)
end)

test("coroutines behave as Lua's own", function()
    local co = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end)
    assert(select(2, coroutine.resume(co, 1)) == 2 and select(2, coroutine.resume(co, 21)) == 42)
    local ok, e = coroutine.resume(co)
    assert(not ok and e == "cannot resume dead coroutine")
    local w = coroutine.wrap(function() error("x", 0) end)
    raises("x", w)
    raises("dead", w)
    local closed = false
    co = coroutine.create(function()
        local c <close> = setmetatable({}, { __close = function() closed = true end })
        coroutine.yield()
    end)
    coroutine.resume(co)
    assert(coroutine.close(co) and closed and coroutine.status(co) == "dead")
    raises("running", coroutine.close, coroutine.running())
    local n = 0
    for v in coroutine.wrap(function() for i = 1, 5 do coroutine.yield(i) end end) do n = n + v end
    assert(n == 15)
    co = coroutine.create(function() error({ code = 7 }) end)
    ok, e = coroutine.resume(co)
    assert(not ok and e.code == 7)
    w = coroutine.wrap(function() local c <close> = setmetatable({}, { __close = function() error "close" end }) error "body" end)
    raises("close", w)
end)

test("completion", function()
    local complete = debug.getregistry().sd_internal.complete
    local function has(line, start, want)
        local c = complete(line, start or #line + 1)
        assert(type(c) == "table", "no list for " .. line)
        for _, x in ipairs(c) do if x == want then return end end
        error(("%s: no %s among %s"):format(line, want, table.concat(c, " ")))
    end
    has("hea", 1, "heads")
    has("whi", 1, "while")
    has("string.for", 8, "format")
    has("x = math.", 10, "pi")
    has("heads(m, {dr", 11, "draws=")
    has("heads(m, {layers='0', dr", 23, "draws=")
    has("capture(m, t, {what='", 22, "k")
    has("tensor(3, {dtype=\"f", 19, "f32")
    model_for_completion = open "data/interim-sd"
    local name = model_for_completion:names()[1]
    has("model_for_completion['", 23, name)
    has("model_for_completion:", 22, "names")
    has("model_for_completion.", 22, "config")
    assert(complete("open 'da", 7) == "files")
    assert(#complete("nosuch.x", 8) == 0)
    trap = setmetatable({}, { __index = function() error "user code ran" end,
        __pairs = function() error "user code ran" end })
    assert(#complete("trap.x", 6) == 0)
    big_table = {}
    for i = 1, 5000 do big_table["field" .. i] = i end
    assert(#complete("big_table.", 11) <= 500)
    model_for_completion, trap, big_table = nil, nil, nil
end)

test("what a model and its tables say of settings", function()
    local g = open "data/interim-gpt2"
    local w = heads(g, { layers = 0, draws = 0 })
    assert(tostring(w):find "no null" and not tostring(w):find "pr_null")
    local p = probe(g, ids { 1, 2, 3, 4, 5, 6, 7, 8 }, { layers = 0, draws = 0 })
    assert(tostring(p):find "no null" and not tostring(p):find "pr_null")
    local n = truncate(g, { layers = "0-5", planes = 1 })
    assert(tostring(n):find "heads of 64", tostring(n))
    w = heads(n, { draws = 2 })
    assert(tostring(w):find "truncated layers by their factors" and w:row(0).status == "ok")
    w = heads(new { preset = "nano", kind = "uniform" }, { draws = 2 })
    assert(tostring(w):find "layer 0 head 0: no scores %(uniform%)")
    local many = {}
    for i = 1, 300 do many[i] = i end
    n = truncate(g, { layers = 0, planes = 1, filter = "scalar", calib = ids(many) })
    assert(tostring(n):find 'truncate {"layers":"0"' and tostring(n):find "…")
    raises("1e%+20", ids, { 1e20 })
    raises("1.5", ids, { 1.5 })
    raises("both given", train, new { preset = "nano", n_layer = 1 }, { text = ids { 1, 2, 3 }, data = "x" })
    raises("0 is nan", ranks, { -(0 / 0) })
end)

-- What a file says of its making is checked on opening: arguments an operation has not are refused.
test("lineage of a stranger", function()
    local dir = os.tmpname()
    os.remove(dir)
    local m = new { preset = "nano", n_layer = 1 }
    save(m, dir)
    local function with(args)
        local f = assert(io.open(dir .. "/config.json"))
        local text = f:read "a"
        f:close()
        text = text:gsub('"args": "[^\n]*"', function() return '"args": "' .. args .. '"' end)
        f = assert(io.open(dir .. "/config.json", "w"))
        f:write(text)
        f:close()
        -- the config file is the one to be read: the weights' own copy says the same
        f = assert(io.open(dir .. "/model.safetensors", "rb"))
        local bytes = f:read "a"
        f:close()
        local n = ("<I8"):unpack(bytes)
        local head, data = bytes:sub(9, 8 + n), bytes:sub(9 + n)
        head = head:gsub("sd_config", "sd_other")
        f = assert(io.open(dir .. "/model.safetensors", "wb"))
        f:write(("<I8"):pack(#head), head, data)
        f:close()
    end
    with [[{\"preset\":\"nano\"}]]
    open(dir)
    with [[{\"preset\":\"nano\",\"evil\":1}]]
    raises("lineage step 0.*evil", open, dir)
    with [[{\n}]]
    raises("control character", open, dir)
    for _, f in ipairs { "config.json", "model.safetensors" } do os.remove(dir .. "/" .. f) end
    os.remove(dir)
end)

-- Tensors that no part of a model uses are named by info and by the model.
test("unused tensors", function()
    local i = info "tests/ref/models/bert"
    local n = 0
    for r = 0, #i - 1 do
        local row = i:row(r)
        if row.unused then
            n = n + 1
            assert(row.name:find "pooler" and row.unused:find "pooler", row.name)
        end
    end
    assert(n == 2 and i.meta.unused == 2, n)
    assert(tostring(open "tests/ref/models/bert"):find "unused      2 tensors")
    raises("no language%-model head", logits, open "tests/ref/models/bert", { 1, 2, 3 })
end)

print(("%d passed, %d failed"):format(pass, fail))
os.exit(fail == 0 and 0 or 1)
