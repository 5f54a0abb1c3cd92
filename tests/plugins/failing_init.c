/* init says no, and leaks a handle on the way. */
#include "gallery.h"
static int init(const sd_host *host, sd_call *call) {
    host->table_new(call, "left behind");
    return host->fail(call, SD_FAIL_MISSING, "the flux capacitor is not plugged in");
}
static const sd_op_desc ops[] = {OP("failing_init_op", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("failing_init", ops), .init = init};
