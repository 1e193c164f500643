/* report_asset - files that are part of the program, made into C by embed.c when it is built. */
#ifndef TANDEM_RANK_REPORT_ASSET_H
#define TANDEM_RANK_REPORT_ASSET_H

#include <stddef.h>

struct report_asset {
    const unsigned char *bytes;
    size_t n;
};

extern const struct report_asset report_asset_css, report_asset_js;
extern const struct report_asset report_asset_chart; /* Chart.js; empty where it is not installed */

#endif
