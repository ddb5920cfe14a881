// Attention in JavaScript as a port for qkvac: Node alone, no package.
//
//     qkvac check -- node attention.mjs
//
// It is called as `node attention.mjs INPUTS OUTPUTS`. Every file INPUTS/x.safetensors holds
// X[n, d] and Wq, Wk, Wv[d, c]; OUTPUTS/x.safetensors gets Q, K, V, scores, A and C in the same
// dtype. JavaScript computes in float64; a typed array rounds what is stored in it.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const ARRAYS = { F32: Float32Array, F64: Float64Array };

// --- the equations --------------------------------------------------------------------------

// left[n, m] @ right[m, k]
function product(left, right) {
  const [n, m] = left.shape;
  const k = right.shape[1];
  const values = new left.values.constructor(n * k);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < k; j++) {
      let sum = 0;
      for (let t = 0; t < m; t++) sum += left.values[i * m + t] * right.values[t * k + j];
      values[i * k + j] = sum;
    }
  return { shape: [n, k], values };
}

function transposed({ shape: [n, m], values }) {
  const turned = new values.constructor(n * m);
  for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) turned[j * n + i] = values[i * m + j];
  return { shape: [m, n], values: turned };
}

// softmax(scores / sqrt(c)) along each row; the largest score is subtracted, so that the
// exponential cannot overflow.
function softmax({ shape: [n, m], values }, c) {
  const weights = new values.constructor(n * m);
  for (let i = 0; i < n; i++) {
    const row = Array.from(values.subarray(i * m, (i + 1) * m), (score) => score / Math.sqrt(c));
    const largest = row.reduce((x, y) => Math.max(x, y), -Infinity);
    const powers = row.map((score) => Math.exp(score - largest));
    const sum = powers.reduce((x, y) => x + y, 0);
    powers.forEach((power, j) => (weights[i * m + j] = power / sum));
  }
  return { shape: [n, m], values: weights };
}

function attention({ X, Wq, Wk, Wv }) {
  const [Q, K, V] = [Wq, Wk, Wv].map((weight) => product(X, weight));
  const scores = product(Q, transposed(K));
  const A = softmax(scores, K.shape[1]);
  return { Q, K, V, scores, A, C: product(A, V) };
}

// --- safetensors: 8 bytes header length, a JSON header, then the numbers, all little-endian ---

function read(path) {
  const bytes = readFileSync(path);
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...entries } = JSON.parse(bytes.toString("utf8", 8, start));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(entries)) {
    if (!(dtype in ARRAYS)) throw new Error(`${path}: ${name} is ${dtype}, neither F32 nor F64`);
    const [begin, end] = data_offsets;
    // A copy, because typed arrays have to begin at a multiple of their entries' size.
    const data = Uint8Array.from(bytes.subarray(start + begin, start + end));
    tensors[name] = { shape, values: new ARRAYS[dtype](data.buffer) };
  }
  return tensors;
}

function write(path, tensors) {
  const header = {};
  const parts = [];
  let offset = 0;
  for (const [name, { shape, values }] of Object.entries(tensors)) {
    const dtype = values instanceof Float32Array ? "F32" : "F64";
    header[name] = { dtype, shape, data_offsets: [offset, offset + values.byteLength] };
    parts.push(new Uint8Array(values.buffer));
    offset += values.byteLength;
  }
  const text = JSON.stringify(header);
  const padded = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  writeFileSync(path, Buffer.concat([length, padded, ...parts]));
}

const [inputs, outputs] = process.argv.slice(2);
try {
  for (const name of readdirSync(inputs))
    if (name.endsWith(".safetensors"))
      write(join(outputs, name), attention(read(join(inputs, name))));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
