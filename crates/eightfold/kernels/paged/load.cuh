// From pages to the ring: where the tokens of a step lie, and their copies.
#pragma once
#include "paged/schedule.cuh"
#include "paged/shared.cuh"
#include "ptx/copy.cuh"

// Where a token lies.
struct TokenAt {
    int page, token;
};

// The steps of keys that one warp takes of a run: warps take turns.
struct Steps {
    const Paged& problem;
    const int* table;         // of the sequence
    int kv_head, first, end;  // keys of the run
    int warp, lane;

    __device__ Steps(const Paged& problem, const Run& run, int warp, int lane)
        : problem(problem),
          table(problem.block_table + run.sequence.index * problem.table_stride),
          kv_head(run.kv_head),
          first(run.keys.first),
          end(run.keys.end),
          warp(warp),
          lane(lane) {}

    __device__ int first_key(int step) const { return first + (step * WARPS + warp) * STEP_KEYS; }
    __device__ int count() const {
        int all = (end - first + STEP_KEYS - 1) / STEP_KEYS;
        return max(all - warp + WARPS - 1, 0) / WARPS;
    }
    __device__ TokenAt at(int key) const {
        return {key < end ? table[key / problem.page_tokens] : 0, key % problem.page_tokens};
    }
};

// What a warp copies to its ring. The lanes copy some rows at once, a chunk each.
struct Copies {
    static constexpr int SPAN = GATHER ? 1 : 16;  // tokens that are sure to follow each other in a page
    static constexpr int ROWS = 32 / ROW_CHUNKS;

    const Steps& steps;
    int row, chunk;              // of this lane, among the rows at once
    const unsigned char *k, *v;  // the lane's chunk of the head's first token
    unsigned shared, place;      // the warp's ring, and the lane's place among rows at once
    TokenAt now, next;           // spans of SPAN steps, one in each lane, and of the steps behind them

    __device__ Copies(const Steps& steps, unsigned shared)
        : steps(steps),
          row(steps.lane / ROW_CHUNKS),
          chunk(steps.lane % ROW_CHUNKS),
          k(steps.problem.k.codes + steps.kv_head * steps.problem.k.head_stride + 16 * chunk),
          v(steps.problem.v.codes + steps.kv_head * steps.problem.v.head_stride + 16 * chunk),
          shared(shared),
          place(chunk_address(0, row, chunk)),
          now(look_up(0)),
          next(look_up(SPAN)) {}

    // Starts the copies of a step and closes their group, which is empty behind the last one.
    __device__ void start(int step) {
        if (step < steps.count()) {
            const Paged& problem = steps.problem;
            if (step > 0 && step % SPAN == 0) {
                now = next;
                next = look_up(step + SPAN);
            }
            int left = steps.end - steps.first_key(step) - row;
            unsigned keys = step_keys(shared, steps.warp, step % STAGES);
            const unsigned char *k_row = nullptr, *v_row = nullptr;
#pragma unroll
            for (int first = 0; first < STEP_KEYS; first += ROWS) {
                if (first % SPAN == 0) {
                    int from = step % SPAN * (32 / SPAN) + (first + row) / SPAN;
                    int page = __shfl_sync(0xffffffff, now.page, from);
                    int token = __shfl_sync(0xffffffff, now.token, from) + (first + row) % SPAN;
                    k_row = problem.k.token(k, page, token);
                    v_row = problem.v.token(v, page, token);
                }
                if (chunk < CHUNKS) {
                    // Rows at once begin where the bits are zero by which their chunks change places.
                    unsigned to = keys + (place ^ 16 * turn_of(first)) + first * ROW_BYTES;
                    int bytes = first < left ? 16 : 0;
                    copy_async_16(to, k_row, bytes);
                    copy_async_16(to + STEP_KEYS * ROW_BYTES, v_row, bytes);
                }
                k_row += ROWS * problem.k.token_stride;
                v_row += ROWS * problem.v.token_stride;
            }
        }
        commit_copies();
    }

   private:
    // A span of so many steps from one on: lanes have those of a step side by side.
    __device__ TokenAt look_up(int step) const {
        int within = steps.lane * SPAN;
        return steps.at(steps.first_key(step + within / STEP_KEYS) + within % STEP_KEYS);
    }
};

// The scales of a step's tokens, each of which has its own: one in each lane, looked up a step ahead.
struct TokenScales {
    const Steps& steps;
    float k = 1.0f, v = 1.0f;  // of this step
    float next_k = 1.0f, next_v = 1.0f;

    __device__ TokenScales(const Steps& steps) : steps(steps) { look_up(0); }

    __device__ void advance(int step) {
        k = next_k;
        v = next_v;
        look_up(step + 1);
    }

   private:
    __device__ void look_up(int step) {
        const Paged& problem = steps.problem;
        int key = steps.first_key(step) + steps.lane;
        next_k = next_v = 1.0f;
        if (key < steps.end) {
            TokenAt at = steps.at(key);
            next_k = problem.k_scales.of_token(at.page, at.token, steps.kv_head);
            next_v = problem.v_scales.of_token(at.page, at.token, steps.kv_head);
        }
    }
};
