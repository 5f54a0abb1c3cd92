/* init fails and gives no reason. */
#include "gallery.h"
static int init(const sd_host *host, sd_call *call) {
    (void)host;
    (void)call;
    return 77;
}
static const sd_op_desc ops[] = {OP("silent_init_op", SD_ARG_NUM, answer)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("silent_init", ops), .init = init};
