// Attention to a cache in pages: few queries of many sequences, each with keys of its own length.
//
//   add up the units of work of all sequences
//   for each run of units in this block's share:
//       each warp, for its steps of keys:
//           copy K, V from their pages;  S = Q·Kᵀ;  mask;  P = softmax so far;  O = correction·O + P·V
//       merge the warps;  store O / sum and the log-sum-exp, or a part that whoever comes last merges
#include "paged/attend.cuh"
#include "paged/load.cuh"
#include "paged/merge.cuh"
#include "paged/problem.cuh"
#include "paged/queries.cuh"
#include "paged/schedule.cuh"
#include "paged/settings.cuh"
#include "paged/shared.cuh"
#include "ptx/bulk.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, Settings::BLOCKS)
    paged_attention(const __grid_constant__ Paged problem) {
    extern __shared__ __align__(256) char memory[];
    __shared__ Schedule schedule;
    __shared__ Run run;
    __shared__ volatile int answer;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if constexpr (DEPENDENT) {
        let_next_launch_start();
        wait_for_last_launch();
    }
    add_up_units(problem, schedule);
    Share share(schedule.before[problem.sequences]);
    for (int unit = share.begin; unit < share.end; unit = run.next) {
        __syncthreads();  // everyone is done with the run before, and has read what is next
        if (threadIdx.x == 0) look_up_run(run, problem, schedule, share, unit);
        __syncthreads();
        Attend tile(problem, run, memory, warp, lane);
        tile.attend(shared_address(memory));
        finish(problem, run, tile.rows, memory, answer, warp, lane);
    }
}
