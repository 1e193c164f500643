/* group_config.c owns what a group has of a config. */
#include "src/rank/group_config.h"

#include <stdlib.h>

int group_of_config(const struct config *c, struct group_texts *t, struct group_settings *out)
{
    int r;

    group_texts_free(t);
    r = config_agree_text(c, &t->agree);
    for (int i = 0; i < c->ranks && r == 0; i++) {
        r = config_host(c, i, t->host[i], sizeof(t->host[i]));
        t->hosts[i] = t->host[i];
    }
    *out = (struct group_settings){ .rank = c->rank,
                                    .world = c->ranks,
                                    .link = c->link,
                                    .rails = c->rails == CONFIG_AUTO ? 0 : c->rails,
                                    .stripe_min = c->stripe_min,
                                    .plan_form = c->plan_form,
                                    .hosts = t->hosts,
                                    .port = c->port,
                                    .secret = c->secret[0] ? c->secret : NULL,
                                    .connect_timeout_ms = c->connect_timeout_ms,
                                    .heartbeat_ms = c->heartbeat_ms,
                                    .peer_timeout_ms = c->peer_timeout_ms,
                                    .stall_ms = c->stall_ms,
                                    .version = TANDEM_VERSION,
                                    .agree = t->agree };
    return r;
}

void group_texts_free(struct group_texts *t)
{
    free(t->agree);
    t->agree = NULL;
}
