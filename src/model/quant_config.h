/* quant_config - what a config.json says about the formats of its checkpoint.
 *
 * Which format a weight has is told by its tensors (stored.h); the config adds what they cannot
 * tell, the block of FP8 scales, and names methods that nobody here can read.
 */
#ifndef TANDEM_MODEL_QUANT_CONFIG_H
#define TANDEM_MODEL_QUANT_CONFIG_H

struct json;

struct quant_config {
    int block; /* outputs and inputs that share an FP8 scale; 0: not said */
};

/* quant_config_read - from the root of a config.json; all zero if it says nothing.
 * errors   -EINVAL a method that is not supported or a block that is not square, by name */
int quant_config_read(const struct json *config, struct quant_config *out);

#endif
