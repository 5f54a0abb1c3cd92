-- generate.lua: text from a model: settings, stops, ids, the end of a position table.
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
local m = open "data/interim-sd"

test("greedy text is what the logits say, token for token", function()
    for _, dir in ipairs { "data/interim-sd", "data/interim-gpt2" } do
        local k = open(dir)
        local ids = encode(k, "The history of the")
        local n = #ids
        for _ = 1, 12 do
            local x = logits(k, ids)
            local row, best = x[#ids - 1], 0
            for j = 1, k.config.vocab - 1 do if row[j] > row[best] then best = j end end
            ids[#ids + 1] = best
        end
        local want = decode(k, ids):sub(#decode(k, { table.unpack(ids, 1, n) }) + 1)
        assert(generate(k, "The history of the", { tokens = 12, temperature = 0 }) == want)
    end
end)

test("kinds mixed in one model", function()
    local n = new { preset = "nano", n_layer = 4, kind = "elu1,sd,softmax,uniform", d_head = "8,16,8,16",
        tokenizer = "data/interim-sd/tokenizer.json", seed = 3 }
    n = truncate(n, { layers = "1", planes = 2 })
    local ids = encode(n, "A small thing")
    local greedy = encode(n, "A small thing")
    for _ = 1, 6 do
        local x = logits(n, greedy)
        local row, best = x[#greedy - 1], 0
        for j = 1, n.config.vocab - 1 do if row[j] > row[best] then best = j end end
        greedy[#greedy + 1] = best
    end
    local want = decode(n, greedy):sub(#decode(n, ids) + 1)
    assert(generate(n, "A small thing", { tokens = 6, temperature = 0 }) == want)
end)

test("draws", function()
    local a = generate(m, "The", { tokens = 20, seed = 5 })
    assert(a == generate(m, "The", { tokens = 20, seed = 5 }))
    assert(a ~= generate(m, "The", { tokens = 20, seed = 6 }))
    local g = generate(m, "The", { tokens = 20, temperature = 0 })
    assert(g == generate(m, "The", { tokens = 20, top_k = 1, seed = 9 }))
    assert(g == generate(m, "The", { tokens = 20, top_p = 1e-6, seed = 9 }))
    assert(g == generate(m, "The", { tokens = 20, temperature = 1e-5, seed = 9 }))
    raises("top_p 0: above 0, up to 1", generate, m, "The", { top_p = 0 })
end)

test("ends", function()
    local g = generate(m, "The", { tokens = 40, temperature = 0 })
    local word = g:match("%a+ (%a+ %a+)")
    local cut = generate(m, "The", { tokens = 40, temperature = 0, stop = word })
    assert(cut == g:sub(1, g:find(word, 1, true) - 1), cut)
    assert(generate(m, "The", { tokens = 40, temperature = 0, stop = "no such text" }) == g)
    local ctx = m.config.n_pos
    local ids = {}
    for i = 1, ctx - 3 do ids[i] = i end
    assert(#encode(m, generate(m, ids, { tokens = 50, temperature = 0, eos = false })) <= 4)
    for i = ctx - 2, ctx + 1 do ids[i] = i end
    raises("a prompt of " .. ctx + 1 .. " tokens: the position table holds " .. ctx, generate, m, ids)
end)

test("ids without a tokenizer; encoders; empty prompts", function()
    local k = open "tests/ref/models/llama-gqa"
    local s = generate(k, { 1, 2, 3 }, { tokens = 5, temperature = 0, eos = false })
    local ids = { 1, 2, 3 }
    for w in s:gmatch "%d+" do
        local x = logits(k, ids)
        local row = x[#ids - 1]
        for j = 0, k.config.vocab - 1 do assert(row[j] <= row[tonumber(w)]) end
        ids[#ids + 1] = tonumber(w)
    end
    assert(#ids == 8)
    raises("stop= needs a tokenizer", generate, k, { 1 }, { stop = "x" })
    raises("encoder", generate, open "tests/ref/models/bert", { 1, 2 })
    raises("needs a BOS token", generate, open "tests/ref/models/qwen2", {})
end)

test("bytes that make a character together", function()
    local big = 0
    for i = 1, 30 do
        local s = generate(m, "\u{1F600}\u{4E2D}\u{56FD}", { tokens = 12, seed = i, temperature = 3 })
        big = big + #s
    end
    assert(big > 100)
end)

print(pass .. " passed, " .. fail .. " failed")
os.exit(fail == 0)
