#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

/* Drops a UTF-8 character that the end of the buffer cut in two. */
static void trim_partial(char *s) {
    size_t n = strlen(s), k = n;
    while (k > 0 && n - k < 4 && ((unsigned char)s[k - 1] & 0xC0) == 0x80)
        k--;
    if (k == 0)
        return;
    unsigned char lead = (unsigned char)s[k - 1];
    size_t want = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead >= 0xC0 && n - (k - 1) < want)
        s[k - 1] = '\0';
}

/* Formats, and escapes what a message cannot show safely (a newline in the name of a tensor would
 * forge a second message). Our own texts have one line and no control bytes; text that was escaped
 * already passes unchanged. */
void sd_vmessage(char *out, size_t cap, const char *fmt, va_list ap) {
    char raw[SD_ERR_TEXT], one[SD_VISIBLE_MAX];
    vsnprintf(raw, sizeof raw, fmt, ap);
    trim_partial(raw);
    size_t n = strlen(raw), w = 0;
    for (size_t i = 0; i < n;) {
        i += sd_visible_next(raw + i, n - i, false, one);
        size_t k = strlen(one);
        if (w + k >= cap)
            break;
        memcpy(out + w, one, k);
        w += k;
    }
    out[w] = '\0';
}

sd_status sd_fail(sd_err *err, sd_status code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        sd_vmessage(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

void sd_err_context(sd_err *err, const char *fmt, ...) {
    if (!err || err->code == SD_OK)
        return;
    char head[SD_ERR_TEXT], tail[SD_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    sd_vmessage(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(tail, err->text, sizeof tail);
    size_t h = strlen(head);
    if (h > sizeof head / 2) /* the cause matters more than a long path */
        head[h = sizeof head / 2] = '\0';
    trim_partial(head);
    h = strlen(head);
    size_t room = sizeof err->text - 1, n = strlen(tail);
    memcpy(err->text, head, h);
    memcpy(err->text + h, ": ", 2);
    if (n > room - h - 2)
        n = room - h - 2;
    memcpy(err->text + h + 2, tail, n);
    err->text[h + 2 + n] = '\0';
    trim_partial(err->text);
}

void sd_err_clear(sd_err *err) {
    if (err) {
        err->code = SD_OK;
        err->text[0] = '\0';
    }
}

const char *sd_status_name(sd_status code) {
    switch (code) {
    case SD_OK:
        return "ok";
    case SD_EINVAL:
        return "bad argument";
    case SD_EFILE:
        return "file error";
    case SD_EFORMAT:
        return "format error";
    case SD_ENUMERIC:
        return "numerical failure";
    case SD_EMISSING:
        return "program missing";
    case SD_EWRITE:
        return "write error";
    case SD_ECANCEL:
        return "interrupted";
    case SD_ENOMEM:
        return "out of memory";
    case SD_EPLUGIN:
        return "plugin error";
    }
    return "unknown status";
}

int sd_status_exit_code(sd_status code) {
    switch (code) {
    case SD_OK:
        return 0;
    case SD_EFILE:
    case SD_EFORMAT:
        return 3;
    case SD_ENUMERIC:
        return 4;
    case SD_EMISSING:
        return 5;
    case SD_EWRITE:
        return 6;
    case SD_ECANCEL:
        return 130;
    case SD_EINVAL:
    case SD_ENOMEM:
    case SD_EPLUGIN:
        return 1;
    }
    return 1;
}
