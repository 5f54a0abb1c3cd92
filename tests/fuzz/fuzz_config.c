/* config.json of any content beside real weights: opens and is readable whole, or is refused with a
 * text; never a large allocation. The first byte chooses the weights. A config that passes the
 * checks must also survive being described and read again. */
#include "fuzz_file.h"

#include "io/json.h"
#include "nn/model.h"

static const char *const refs[] = {"gpt2",       "bert-mlm", "neox",    "llama-gqa",
                                   "llama-bias", "qwen2",    "mistral", "gpt2-untied"};
enum { N_REFS = sizeof refs / sizeof refs[0] };
static char folder[N_REFS][128];

static void clean_up(void) {
    for (size_t i = 0; i < N_REFS; i++) {
        char p[160];
        snprintf(p, sizeof p, "%s/config.json", folder[i]);
        unlink(p);
        snprintf(p, sizeof p, "%s/model.safetensors", folder[i]);
        unlink(p);
        rmdir(folder[i]);
    }
    rmdir(fuzz_dir);
}

static void set_up(void) {
    static bool done;
    if (done)
        return;
    done = true;
    fuzz_write("f", "", 0);
    atexit(clean_up); // runs before fuzz_clean
    for (size_t i = 0; i < N_REFS; i++) {
        char from[160], to[192];
        sd_buf b = {0};
        snprintf(folder[i], sizeof folder[i], "%.100s/%s", fuzz_dir, refs[i]);
        snprintf(from, sizeof from, "tests/ref/models/%s/model.safetensors", refs[i]);
        snprintf(to, sizeof to, "%s/model.safetensors", folder[i]);
        if (sd_mkdirs(folder[i], NULL) != SD_OK || sd_read_file(from, 0, &b, NULL) != SD_OK ||
            sd_write_file(to, b.p, b.n, NULL) != SD_OK)
            abort(); // run from the repository's root
        sd_buf_free(&b);
    }
}

/* configure → describe → configure keeps what the family's keys can say. */
static void round_trip(const json_t *config) {
    sd_err err = {0};
    for (size_t i = 0; sd_family_at(i); i++) {
        const sd_family *f = sd_family_at(i);
        if (!f->matches(config, false))
            continue;
        sd_config a = {0}, b = {0};
        json_t *out = NULL;
        if (f->configure(config, NULL, &a, NULL, &err) == SD_OK &&
            sd_config_check(&a, &err) == SD_OK) {
            if (f->describe(&a, &out, &err) != SD_OK ||
                f->configure(out, NULL, &b, NULL, &err) != SD_OK ||
                sd_config_check(&b, &err) != SD_OK)
                abort();
            if (a.n_layer != b.n_layer || a.d_model != b.d_model || a.vocab != b.vocab ||
                a.d_ff != b.d_ff || a.n_pos != b.n_pos || a.norm_eps != b.norm_eps ||
                a.tied != b.tied || a.rope.dim != b.rope.dim || a.rope.theta != b.rope.theta ||
                a.qkv_bias != b.qkv_bias || a.act != b.act)
                abort();
            for (int l = 0; l < a.n_layer; l++) {
                if (a.layer[l].d_qk != b.layer[l].d_qk || a.layer[l].n_head != b.layer[l].n_head ||
                    strcmp(a.layer[l].kind, b.layer[l].kind) != 0)
                    abort();
            }
        }
        json_decref(out);
        sd_config_free(&a);
        sd_config_free(&b);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    set_up();
    if (size < 1)
        return 0;
    const char *dir = folder[data[0] % N_REFS];
    char path[192];
    snprintf(path, sizeof path, "%s/config.json", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data + 1, size - 1) != (ssize_t)(size - 1))
        abort();
    close(fd);
    sd_err err = {0};
    sd_model *m = NULL;
    if (sd_model_open(dir, NULL, &m, &err) != SD_OK) {
        if (m || !err.text[0])
            abort();
    } else {
        const sd_config *c = sd_model_config(m);
        for (int l = 0; l < c->n_layer; l++) {
            for (int r = 0; r < SD_ROLE_COUNT; r++) {
                sd_tensor *t = NULL;
                int64_t shape[2];
                int nd;
                if (!sd_role_shape(c, l, (sd_role)r, shape, &nd))
                    continue;
                if (sd_model_get(m, l, (sd_role)r, SD_F32, &t, &err) != SD_OK)
                    abort(); // a part the config promises is there
                sd_tensor_free(t);
            }
        }
        sd_model_unref(m);
    }
    json_t *j = NULL;
    if (sd_json_parse((const char *)data + 1, size - 1, "fuzz", &j, &err) == SD_OK) {
        if (json_is_object(j))
            round_trip(j);
        json_decref(j);
    }
    return 0;
}
