/* stored_rig - checkpoint folders from a line of text: "w.weight:U8[8,32] w.weight_scale_2:F32[]=3f800000".
 * Data are zeros, or the 32 bits behind the equals sign again and again. */
#ifndef TANDEM_TESTS_MODEL_STORED_RIG_H
#define TANDEM_TESTS_MODEL_STORED_RIG_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "src/model/stored.h"
#include "tests/model/tensors.h"

static inline size_t type_bytes(const char *type)
{
    return strstr(type, "32") ? 4 : strstr(type, "16") ? 2 : 1;
}

static inline void tensors_line(struct tensors *f, const char *line)
{
    char name[256], type[32], shape[64], value[16];

    while (*line) {
        size_t n = 1, bytes;
        uint32_t bits = 0;
        char *data, *end;
        int used, got = sscanf(line, "%255[^:]:%31[^[][%63[^] ]%n", name, type, shape + 1, &used);

        if (got < 3) { /* no dimensions */
            cr_assert(sscanf(line, "%255[^:]:%31[^[][]%n", name, type, &used) == 2, "%s", line);
            shape[1] = 0;
        } else {
            used++;
        }
        shape[0] = '[';
        strcat(shape, "]");
        for (const char *p = shape + 1; *p != ']'; p = *end == ',' ? end + 1 : end)
            n *= (size_t)strtoul(p, &end, 10);
        line += used;
        if (*line == '=') {
            cr_assert(sscanf(line, "=%15[0-9a-fA-F]%n", value, &used) == 1);
            bits = (uint32_t)strtoul(value, NULL, 16);
            line += used;
        }
        while (*line == ' ')
            line++;
        bytes = n * type_bytes(type);
        data = calloc(bytes + 4, 1);
        for (size_t i = 0; i < bytes; i += 4)
            memcpy(data + i, &bits, 4);
        tensors_add(f, name, type, shape, data, bytes);
        free(data);
    }
}

/* A source of these tensors and, unless it is NULL, this config.json; its folder is gone already. */
static inline int source_of(const char *line, const char *config, struct source **out)
{
    char folder[PATH_CAP], path[PATH_CAP];
    struct tensors f = { 0 };
    int r;

    temp_folder(folder);
    tensors_line(&f, line);
    tensors_write(&f, folder, "model.safetensors");
    path_join(path, sizeof(path), folder, "config.json");
    if (config)
        cr_assert(eq(int, file_write(path, config, strlen(config), 0644), 0));
    r = source_hf_open(folder, out);
    folder_count(folder, 1);
    return r;
}

#endif
