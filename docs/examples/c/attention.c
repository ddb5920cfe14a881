/* Attention in C as a port for qkvac: no library, no dependency.
 *
 *     cc -O2 -o attention attention.c -lm
 *     qkvac check -- ./attention
 *
 * It is called as `attention INPUTS OUTPUTS`. Every file INPUTS/x.safetensors holds X[n, d] and
 * Wq, Wk, Wv[d, c]; OUTPUTS/x.safetensors gets Q, K, V, scores, A and C in the same dtype.
 *
 * Numbers are computed in double and rounded when they are stored, so that one function serves
 * float32 (F32) and float64 (F64).
 */
#include <dirent.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    size_t rows, columns;
    double *values;
} Tensor;

static void fail(const char *what, const char *where) {
    fprintf(stderr, "%s: %s\n", where, what);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("out of memory", "attention");
    return memory;
}

/* --- the equations ---------------------------------------------------------------------- */

static int is_float32; /* whether the file at hand holds F32; F64 otherwise */

static double stored(double value) { return is_float32 ? (double)(float)value : value; }

static Tensor tensor(const char *name, size_t rows, size_t columns) {
    return (Tensor){name, rows, columns, allocate(rows * columns, sizeof(double))};
}

/* left[n, m] @ right[m, k] */
static Tensor product(const char *name, Tensor left, Tensor right) {
    Tensor out = tensor(name, left.rows, right.columns);
    for (size_t i = 0; i < out.rows; i++)
        for (size_t j = 0; j < out.columns; j++) {
            double sum = 0;
            for (size_t k = 0; k < left.columns; k++)
                sum += left.values[i * left.columns + k] * right.values[k * right.columns + j];
            out.values[i * out.columns + j] = stored(sum);
        }
    return out;
}

static Tensor transposed(Tensor matrix) {
    Tensor out = tensor(matrix.name, matrix.columns, matrix.rows);
    for (size_t i = 0; i < matrix.rows; i++)
        for (size_t j = 0; j < matrix.columns; j++)
            out.values[j * out.columns + i] = matrix.values[i * matrix.columns + j];
    return out;
}

/* softmax(scores / sqrt(c)) along each row; the largest score is subtracted, so that the
 * exponential cannot overflow. */
static Tensor softmax(const char *name, Tensor scores, size_t c) {
    Tensor out = tensor(name, scores.rows, scores.columns);
    double root = sqrt((double)c);
    for (size_t i = 0; i < out.rows; i++) {
        const double *row = scores.values + i * scores.columns;
        double *weights = out.values + i * out.columns;
        double largest = -INFINITY, sum = 0;
        for (size_t j = 0; j < out.columns; j++) largest = fmax(largest, row[j] / root);
        for (size_t j = 0; j < out.columns; j++) sum += weights[j] = exp(row[j] / root - largest);
        for (size_t j = 0; j < out.columns; j++) weights[j] = stored(weights[j] / sum);
    }
    return out;
}

/* --- safetensors: 8 bytes header length, a JSON header, then the numbers, all little-endian -- */

static uint64_t read_header_length(const unsigned char *data) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    return length;
}

/* Finds "name":{"dtype":…,"shape":[r,c],"data_offsets":[begin,end]} in the header. */
static Tensor input(const char *name, const char *header, const unsigned char *data, size_t size,
                    const char *path) {
    char key[16], dtype[8];
    unsigned long long rows, columns, begin;
    snprintf(key, sizeof key, "\"%s\":{", name);
    const char *entry = strstr(header, key);
    if (!entry) fail("an input is absent", path);
    const char *form = "\"dtype\":\"%7[A-Z0-9]\",\"shape\":[%llu,%llu],\"data_offsets\":[%llu,";
    if (sscanf(entry + strlen(key), form, dtype, &rows, &columns, &begin) != 4)
        fail("an input is no matrix", path);
    if (strcmp(dtype, "F32") && strcmp(dtype, "F64")) fail("neither F32 nor F64", path);
    is_float32 = !strcmp(dtype, "F32");
    size_t bytes = is_float32 ? sizeof(float) : sizeof(double);
    if (begin > size || (columns && rows > (size - begin) / bytes / columns))
        fail("an input ends early", path);
    Tensor out = tensor(name, rows, columns);
    for (size_t i = 0; i < rows * columns; i++)
        if (is_float32) {
            float value;
            memcpy(&value, data + begin + i * sizeof value, sizeof value);
            out.values[i] = value;
        } else {
            memcpy(&out.values[i], data + begin + i * sizeof(double), sizeof(double));
        }
    return out;
}

static void output(const char *path, const Tensor *tensors, int count) {
    char header[1024] = "{";
    size_t used = 1, offset = 0, size = is_float32 ? sizeof(float) : sizeof(double);
    for (int t = 0; t < count; t++) {
        size_t bytes = tensors[t].rows * tensors[t].columns * size;
        used += snprintf(header + used, sizeof header - used,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu,%zu],"
                         "\"data_offsets\":[%zu,%zu]}",
                         t ? "," : "", tensors[t].name, is_float32 ? "F32" : "F64",
                         tensors[t].rows, tensors[t].columns, offset, offset + bytes);
        offset += bytes;
    }
    header[used++] = '}';
    while (used % 8) header[used++] = ' ';
    FILE *file = fopen(path, "wb");
    if (!file) fail("cannot be written", path);
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)used >> 8 * i & 255), file);
    fwrite(header, 1, used, file);
    for (int t = 0; t < count; t++)
        for (size_t i = 0; i < tensors[t].rows * tensors[t].columns; i++) {
            float single = (float)tensors[t].values[i];
            fwrite(is_float32 ? (void *)&single : (void *)&tensors[t].values[i], size, 1, file);
        }
    if (fclose(file)) fail("cannot be written", path);
}

/* --- one file after another ------------------------------------------------------------------ */

static void answer(const char *from, const char *to) {
    FILE *file = fopen(from, "rb");
    if (!file) fail("cannot be read", from);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = allocate(size, 1);
    if (fread(bytes, 1, size, file) != size || size < 8) fail("cannot be read", from);
    fclose(file);
    uint64_t length = read_header_length(bytes);
    if (length > size - 8) fail("is no safetensors file", from);
    char *header = allocate(length + 1, 1);
    memcpy(header, bytes + 8, length);

    const unsigned char *data = bytes + 8 + length;
    size -= 8 + length;
    Tensor X = input("X", header, data, size, from);
    Tensor Wq = input("Wq", header, data, size, from);
    Tensor Wk = input("Wk", header, data, size, from);
    Tensor Wv = input("Wv", header, data, size, from);

    Tensor Q = product("Q", X, Wq), K = product("K", X, Wk), V = product("V", X, Wv);
    Tensor turned = transposed(K);
    Tensor scores = product("scores", Q, turned);
    Tensor A = softmax("A", scores, K.columns);
    Tensor C = product("C", A, V);

    output(to, (Tensor[]){Q, K, V, scores, A, C}, 6);

    Tensor all[] = {X, Wq, Wk, Wv, Q, K, V, turned, scores, A, C};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++) free(all[t].values);
    free(header);
    free(bytes);
}

int main(int count, char **words) {
    const char *suffix = ".safetensors";
    if (count != 3) fail("give a folder of inputs and a folder for outputs", words[0]);
    DIR *folder = opendir(words[1]);
    if (!folder) fail("cannot be opened", words[1]);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char from[4096], to[4096];
        size_t length = strlen(entry->d_name), end = strlen(suffix);
        if (length < end || strcmp(entry->d_name + length - end, suffix)) continue;
        snprintf(from, sizeof from, "%s/%s", words[1], entry->d_name);
        snprintf(to, sizeof to, "%s/%s", words[2], entry->d_name);
        answer(from, to);
    }
    closedir(folder);
    return 0;
}
