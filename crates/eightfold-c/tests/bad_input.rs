//! Whatever an argument struct says, as long as its addresses and counts are true a call ends with a status, and with a sentence
//! where it fails. Devices are met here only on a machine that has one.

use eightfold_c::constants::*;
use eightfold_c::*;
use proptest::prelude::*;
use std::ffi::CStr;
use std::ptr;

const BYTES: usize = 4096;
const ZEROES: [u64; 4] = [0; 4];

/// Memory that every address of a struct points into.
#[repr(C, align(64))]
struct Arena([u8; BYTES]);

/// The status of a call; one that failed must have said why.
fn outcome(status: ef_status) -> ef_status {
    assert!((EF_OK..=EF_DEVICE).contains(&status), "{status}: {}", last());
    if status != EF_OK {
        assert!(last().contains("; ") || last().contains(": "), "{}", last());
    }
    status
}

fn last() -> String {
    // SAFETY: the text ends with a zero and is this thread's.
    unsafe { CStr::from_ptr(ef_last_error()) }.to_string_lossy().into_owned()
}

/// Sizes that are small, zero, or absurd.
fn size() -> BoxedStrategy<u64> {
    prop_oneof![
        4 => 1..5u64,
        3 => prop_oneof![Just(8u64), Just(16), Just(64)],
        1 => Just(0),
        1 => prop_oneof![Just(u64::MAX), Just(u64::MAX / 8), Just(1 << 62), Just(1 << 40), Just(257)],
    ]
    .boxed()
}

fn number() -> BoxedStrategy<i32> {
    prop_oneof![6 => 0..3i32, 1 => prop_oneof![Just(-1), Just(i32::MIN), Just(i32::MAX), Just(7)]].boxed()
}

fn scale() -> BoxedStrategy<f32> {
    prop_oneof![4 => Just(0.0f32), 2 => 0.01..2.0f32, 1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(-1.0), Just(f32::MIN_POSITIVE)]]
    .boxed()
}

/// Of a struct of this size: mostly right, else too small, too large, or cut anywhere.
fn struct_size<T>() -> BoxedStrategy<u32> {
    let right = size_of::<T>() as u32;
    prop_oneof![8 => Just(right), 1 => 0..right, 1 => right..right + 64, 1 => prop_oneof![Just(u32::MAX), Just(8), Just(56)]]
    .boxed()
}

fn problem_args() -> BoxedStrategy<ef_problem_args> {
    let sizes = (size(), size(), size(), size(), size(), size());
    let numbers = (number(), number(), number(), number(), number(), number(), number());
    (struct_size::<ef_problem_args>(), sizes, numbers, scale())
        .prop_map(|(struct_size, sizes, numbers, softmax_scale)| {
            let (batch, query_heads, kv_heads, query_len, key_len, head_dim) = sizes;
            let (input_format, mask, output_format, output_layout, accuracy, lse, batch_invariant) = numbers;
            ef_problem_args {
                struct_size,
                input_format,
                batch,
                query_heads,
                kv_heads,
                query_len,
                key_len,
                head_dim,
                softmax_scale,
                mask,
                output_format,
                output_layout,
                accuracy,
                lse,
                batch_invariant,
                reserved: 0,
            }
        })
        .boxed()
}

/// Where a pointer points: null, the arena's front, or a little further, which may be misaligned.
fn place() -> BoxedStrategy<Option<usize>> {
    prop_oneof![1 => Just(None), 4 => Just(Some(0)), 2 => Just(Some(64)), 2 => (0..32usize).prop_map(Some)].boxed()
}

fn at<T>(arena: *mut Arena, place: Option<usize>) -> *mut T {
    place.map_or(ptr::null_mut(), |place| arena.cast::<u8>().wrapping_add(place).cast())
}

/// A count that is true: as much as fits behind the place, or a little, or as many as the sizes say where they fit.
fn true_count(dims: [u64; 4], bytes: usize, place: Option<usize>, exact: bool) -> u64 {
    let room = ((BYTES - place.unwrap_or(0)) / bytes) as u64;
    let count = dims.iter().try_fold(1u64, |count, size| count.checked_mul(*size));
    match count {
        Some(count) if count <= room && exact => count,
        _ => room.min(5),
    }
}

type Sizes = (u64, u64, u64, u64);
type Parts = (Sizes, (i32, i32, i32), u64, (Option<usize>, Option<usize>, Option<usize>), bool);

fn parts() -> BoxedStrategy<Parts> {
    (
        (size(), size(), size(), size()),
        (number(), number(), number()),
        size(),
        (place(), place(), place()),
        proptest::bool::weighted(0.9),
    )
        .boxed()
}

fn tensor(arena: *mut Arena, struct_size: u32, parts: &Parts) -> ef_fp8_tensor {
    let ((batch, heads, len, head_dim), (format, layout, granularity), block_rows, (codes, scales, means), exact) =
        *parts;
    let blocks = match granularity {
        EF_PER_TENSOR => [1, 1, 1, 1],
        EF_PER_BLOCK if block_rows > 0 => [batch, heads, len.div_ceil(block_rows), 1],
        _ => [batch, heads, 1, 1],
    };
    ef_fp8_tensor {
        struct_size,
        format,
        batch,
        heads,
        len,
        head_dim,
        codes: at(arena, codes),
        code_count: true_count([batch, heads, len, head_dim], 1, codes, exact),
        scales: at(arena, scales),
        scale_count: true_count(blocks, 4, scales, exact),
        layout,
        granularity,
        block_rows,
        means: at(arena, means),
        mean_count: true_count([batch, heads, head_dim, 1], 4, means, exact),
    }
}

fn values(arena: *mut Arena, struct_size: u32, parts: &Parts) -> ef_values {
    let ((batch, heads, len, head_dim), (format, layout, _), _, (data, _, _), exact) = *parts;
    ef_values {
        struct_size,
        format,
        batch,
        heads,
        len,
        head_dim,
        data: at(arena, data),
        count: true_count([batch, heads, len, head_dim], 4, data, exact),
        layout,
        reserved: 0,
    }
}

fn output(arena: *mut Arena, struct_size: u32, parts: &Parts, dims: [u64; 4]) -> ef_output {
    let (_, _, _, (values, lse, _), exact) = *parts;
    let [batch, heads, len, _] = dims;
    ef_output {
        struct_size,
        reserved: 0,
        values: at(arena, values),
        value_count: true_count(dims, 4, values, exact),
        lse: at(arena, lse),
        lse_count: true_count([batch, heads, len, 1], 4, lse, exact),
    }
}

/// Floats and codes that are finite and positive in every format, so that most calls get far.
fn arena() -> Box<Arena> {
    Box::new(Arena([0x3c; BYTES]))
}

/// Sizes of a cache that is small or absurd.
fn cache_size() -> BoxedStrategy<u64> {
    prop_oneof![6 => 1..4u64, 2 => Just(8u64), 1 => Just(0), 1 => prop_oneof![Just(u64::MAX), Just(1 << 62), Just(1 << 40), Just(1 << 31)]]
        .boxed()
}

type Pages = ([u64; 4], (i32, i32), [u64; 6], (Option<usize>, Option<usize>));

fn pages() -> BoxedStrategy<Pages> {
    let stride = || prop_oneof![4 => Just(0u64), 2 => prop_oneof![Just(8u64), Just(16), Just(64)], 1 => size()];
    (
        [cache_size(), cache_size(), cache_size(), size()],
        (number(), prop_oneof![6 => 0..4i32, 1 => Just(-1)]),
        [stride(), stride(), stride(), stride(), stride(), stride()],
        (place(), place()),
    )
        .boxed()
}

fn paged(arena: *mut Arena, struct_size: u32, pages: &Pages) -> ef_paged_tensor {
    let (sizes, (format, scales_of), strides, (codes, scales)) = *pages;
    let room = |place: Option<usize>, bytes: usize| ((BYTES / 2 - place.unwrap_or(0)) / bytes) as u64;
    ef_paged_tensor {
        struct_size,
        format,
        pages: sizes[0],
        page_size: sizes[1],
        heads: sizes[2],
        head_dim: sizes[3],
        codes: at(arena, codes),
        code_count: room(codes, 1),
        scales: at(arena, scales.map(|place| BYTES / 2 + place)),
        scale_count: room(scales, 4),
        scales_of,
        reserved: 0,
        page_stride: strides[0],
        token_stride: strides[1],
        head_stride: strides[2],
        scale_page_stride: strides[3],
        scale_token_stride: strides[4],
        scale_head_stride: strides[5],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn problems(args in problem_args()) {
        let mut problem = ptr::dangling_mut();
        // SAFETY: the struct has as many bytes as it says, or says more than the library knows.
        let status = outcome(unsafe { ef_problem_new(&args, &mut problem) });
        prop_assert_eq!(problem.is_null(), status != EF_OK);
        // SAFETY: it is null or was just made.
        unsafe { ef_problem_free(problem) };
    }

    #[test]
    fn attention_on_the_host(
        args in problem_args(),
        all in [parts(), parts(), parts(), parts()],
        like_problem in proptest::bool::weighted(0.8),
        as_values: bool,
        size in struct_size::<ef_fp8_tensor>(),
    ) {
        let mut problem = ptr::null_mut();
        // SAFETY: as above.
        let made = unsafe { ef_problem_new(&args, &mut problem) } == EF_OK;
        let mut all = all;
        if like_problem {
            let queries = (args.batch, args.query_heads, args.query_len, args.head_dim);
            let keys = (args.batch, args.kv_heads, args.key_len, args.head_dim);
            (all[0].0, all[1].0, all[2].0) = (queries, keys, keys);
        }
        let mut arena = arena();
        let memory: *mut Arena = &mut *arena;
        let room = output(memory, size_of::<ef_output>() as u32, &all[3], [args.batch, args.query_heads, args.query_len, args.head_dim]);
        let status = if as_values {
            let [q, k, v] = [0, 1, 2].map(|index| values(memory, size_of::<ef_values>() as u32, &all[index]));
            // SAFETY: addresses and counts are true: all lies in the arena, which no one else uses.
            unsafe { ef_attention_values(problem, &q, &k, &v, &room) }
        } else {
            let [q, k, v] = [0, 1, 2].map(|index| tensor(memory, size, &all[index]));
            // SAFETY: as above; where the size is wrong nothing more is read.
            unsafe { ef_attention(problem, &q, &k, &v, &room) }
        };
        outcome(status);
        prop_assert!(made || status != EF_OK);
        // SAFETY: it is null or was just made.
        unsafe { ef_problem_free(problem) };
    }

    #[test]
    fn quantising_on_the_host(
        given in parts(),
        numbers in (number(), number(), number(), number()),
        rows in size(),
        largest_code in scale(),
        sizes in (struct_size::<ef_values>(), struct_size::<ef_quantize_args>()),
        with_args: bool,
    ) {
        let mut arena = arena();
        let values = values(&mut *arena, sizes.0, &given);
        let (format, layout, granularity, centred) = numbers;
        let args = ef_quantize_args { struct_size: sizes.1, format, layout, granularity, block_rows: rows, largest_code, centred };
        let args = if with_args { ptr::from_ref(&args) } else { ptr::null() };
        let mut quantized = ptr::dangling_mut();
        // SAFETY: addresses and counts are true.
        let status = outcome(unsafe { ef_quantize(&values, args, &mut quantized) });
        prop_assert_eq!(quantized.is_null(), status != EF_OK);
        if status == EF_OK {
            // SAFETY: zero is a value of every field.
            let mut tensor: ef_fp8_tensor = unsafe { std::mem::zeroed() };
            // SAFETY: the handle was just made, and the tensor has as many bytes as it says.
            unsafe {
                prop_assert_eq!(ef_quantized_tensor(quantized, &mut tensor), EF_INVALID);
                // One that is older: what it does not know is not written.
                tensor.struct_size = 72;
                tensor.block_rows = 77;
                prop_assert_eq!(ef_quantized_tensor(quantized, &mut tensor), EF_OK);
                prop_assert_eq!((tensor.struct_size, tensor.block_rows), (72, 77));
                tensor.struct_size = size_of::<ef_fp8_tensor>() as u32;
                prop_assert_eq!(ef_quantized_tensor(quantized, &mut tensor), EF_OK);
                prop_assert_ne!(tensor.block_rows, 77);
            }
            prop_assert_eq!(tensor.code_count, values.count);
        }
        // SAFETY: it is null or was just made.
        unsafe { ef_quantized_free(quantized) };
    }

    #[test]
    fn caches_in_pages_on_the_host(
        args in problem_args(),
        given in pages(),
        query in parts(),
        entries in proptest::collection::vec(prop_oneof![6 => 0..4i32, 1 => any::<i32>()], 12),
        slots in proptest::collection::vec(prop_oneof![6 => -1..9i64, 1 => any::<i64>()], 4),
        counts in (0..6u64, 0..12u64, size(), 0..4u64, 0..5u64),
        sizes in (struct_size::<ef_paged_tensor>(), struct_size::<ef_tables>(), struct_size::<ef_new_tokens>()),
        format in number(),
        like_problem in proptest::bool::weighted(0.9),
    ) {
        let mut problem = ptr::null_mut();
        // SAFETY: as above.
        let made = unsafe { ef_problem_new(&args, &mut problem) } == EF_OK;
        let (mut cache_memory, mut query_memory, mut output_memory) = (arena(), arena(), arena());
        let (mut given, mut query) = (given, query);
        if like_problem {
            (given.0[2], given.0[3]) = (args.kv_heads, args.head_dim);
            query.0 = (1, args.query_heads, query.0.2, args.head_dim);
        }
        let cache = paged(&mut *cache_memory, sizes.0, &given);
        let (start_count, block_table_count, max_pages, length_count, slot_count) = counts;
        let tables = ef_tables {
            struct_size: sizes.1, reserved: 0, starts: entries.as_ptr(), start_count, block_table: entries.as_ptr(), block_table_count,
            max_pages, lengths: entries.as_ptr(), length_count,
        };
        let (q, dims) = (values(&mut *query_memory, size_of::<ef_values>() as u32, &query), query.0);
        let room = output(&mut *output_memory, size_of::<ef_output>() as u32, &query, [dims.0, dims.1, dims.2, dims.3]);
        let new = ef_new_tokens {
            struct_size: sizes.2, format, values: q.data, value_count: q.count, slots: slots.as_ptr(), slot_count: slot_count.min(4),
        };
        // SAFETY: addresses and counts are true: each lies in memory of its own.
        unsafe {
            let status = outcome(ef_paged_attention(problem, &q, &cache, &cache, &tables, &room));
            prop_assert!(made || status != EF_OK);
            outcome(ef_paged_append(&cache, &new));
            outcome(ef_paged_attention(problem, &q, &cache, &cache, &tables, &room));
            ef_problem_free(problem);
        }
    }

    #[test]
    fn merging_on_the_host(given in [parts(), parts(), parts()], like_first in proptest::bool::weighted(0.9), count in 0..4u64, sizes in (struct_size::<ef_parts>(), struct_size::<ef_output>()), layout in number()) {
        let mut given = given;
        if like_first {
            (given[1].0, given[2].0) = (given[0].0, given[0].0);
        }
        let mut memory = [arena(), arena(), arena()];
        let outputs: Vec<ef_output> = memory.iter_mut().zip(&given).map(|(memory, parts)| {
            let (batch, heads, len, head_dim) = parts.0;
            output(&mut **memory, sizes.1, parts, [batch, heads, len, head_dim])
        }).collect();
        let pointers: Vec<*const ef_output> = outputs.iter().map(ptr::from_ref).collect();
        let (batch, heads, len, head_dim) = given[0].0;
        let parts = ef_parts { struct_size: sizes.0, format: given[0].1.0, batch, heads, len, head_dim, parts: pointers.as_ptr(), part_count: count.min(3), layout, reserved: 0 };
        // SAFETY: addresses and counts are true.
        outcome(unsafe { ef_merge(&parts, &outputs[2]) });
    }

    #[test]
    fn caches_of_the_library(
        sizes in [cache_size(), cache_size(), cache_size(), size()],
        size in struct_size::<ef_cache_args>(),
        steps in proptest::collection::vec((0..3u64, 0..6u64, number(), place(), place()), 0..8),
    ) {
        let args = ef_cache_args { struct_size: size, reserved: 0, pages: sizes[0], page_size: sizes[1], kv_heads: sizes[2], head_dim: sizes[3] };
        let mut cache = ptr::dangling_mut();
        // SAFETY: the struct has as many bytes as it says, or says more than the library knows.
        let status = outcome(unsafe { ef_cache_new(&args, &mut cache) });
        prop_assert_eq!(cache.is_null(), status != EF_OK);
        let mut memory = arena();
        for (what, sequence, format, k, v) in steps {
            let mut number = 0;
            let count = true_count([sequence, sizes[2], sizes[3], 1], 4, k.max(v), true);
            // SAFETY: the handle is null or was just made, and addresses and counts are true.
            unsafe {
                match what {
                    0 => outcome(ef_cache_open(cache, &mut number)),
                    1 => outcome(ef_cache_append(cache, sequence, format, at::<u8>(&mut *memory, k).cast(), at::<u8>(&mut *memory, v).cast(), count)),
                    _ => outcome(ef_cache_close(cache, sequence)),
                };
            }
        }
        // SAFETY: it is null or was just made.
        unsafe { ef_cache_free(cache) };
    }

    #[test]
    fn calls_on_pages_without_a_device(
        args in problem_args(),
        sizes in (struct_size::<ef_paged_call_args>(), struct_size::<ef_append_call_args>()),
        numbers in (number(), number(), number(), number()),
        four in [size(), size(), size(), size()],
        three in [size(), size(), size()],
    ) {
        let (mut problem, mut context) = (ptr::null_mut(), ptr::null_mut());
        let (query_format, packed, scales_of, value_format) = numbers;
        let [pages, page_size, kv_heads, head_dim] = four;
        let paged = ef_paged_call_args {
            struct_size: sizes.0, query_format, packed, scales_of, pages, page_size, q_strides: four, output_strides: ZEROES,
            k_strides: three, v_strides: [0; 3], scale_strides: three,
        };
        let append = ef_append_call_args {
            struct_size: sizes.1, cache_format: packed, value_format, scales_of, pages, page_size, kv_heads, head_dim,
            new_k_strides: [0; 2], new_v_strides: [three[0], three[1]], k_strides: three, v_strides: [0; 3], scale_strides: three,
        };
        let opened = ef_context_args { struct_size: size_of::<ef_context_args>() as u32, device: EF_CPU, nvrtc: ptr::null(), cache: ptr::null() };
        let (mut attend, mut write, mut merge) = (ptr::dangling_mut(), ptr::dangling_mut(), ptr::dangling_mut());
        // SAFETY: handles are null or were just made, and structs have as many bytes as they say or are refused.
        unsafe {
            ef_problem_new(&args, &mut problem);
            prop_assert_eq!(outcome(ef_context_open(&opened, &mut context)), EF_OK);
            prop_assert_ne!(outcome(ef_paged_call_new(context, problem, &paged, &mut attend)), EF_OK);
            prop_assert_ne!(outcome(ef_append_call_new(context, &append, &mut write)), EF_OK);
            prop_assert_ne!(outcome(ef_merge_call_new(context, head_dim, value_format, &mut merge)), EF_OK);
            prop_assert!(attend.is_null() && write.is_null() && merge.is_null());
            ef_problem_free(problem);
            ef_context_close(context);
        }
    }

    #[test]
    fn calls_without_a_device(
        args in problem_args(),
        sizes in (struct_size::<ef_value_call_args>(), struct_size::<ef_fp8_call_args>(), struct_size::<ef_context_args>()),
        numbers in (number(), number(), number(), number()),
        strides in [size(), size(), size(), size()],
        rows in size(),
    ) {
        let (mut problem, mut context, mut call) = (ptr::null_mut(), ptr::null_mut(), ptr::dangling_mut());
        let (first, second, third, fourth) = numbers;
        let opened = ef_context_args { struct_size: sizes.2, device: EF_CPU, nvrtc: ptr::null(), cache: ptr::null() };
        let values = ef_value_call_args {
            struct_size: sizes.0, format: first, layout: second, uncentred_keys: third,
            q_strides: strides, k_strides: ZEROES, v_strides: strides, output_strides: strides,
        };
        let codes = ef_fp8_call_args {
            struct_size: sizes.1, layout: first, q_granularity: second, k_granularity: third, v_granularity: fourth, reserved: 0,
            q_block_rows: rows, k_block_rows: rows, v_block_rows: rows,
            q_strides: strides, k_strides: ZEROES, v_strides: strides, output_strides: strides,
        };
        // SAFETY: handles are null or were just made, and structs have as many bytes as they say or are refused.
        unsafe {
            let made = ef_problem_new(&args, &mut problem) == EF_OK;
            let opened = outcome(ef_context_open(&opened, &mut context)) == EF_OK;
            let explained = outcome(ef_explain(context, problem, ptr::null_mut(), 0, ptr::null_mut()));
            prop_assert_eq!(explained == EF_OK, made && opened);
            prop_assert_ne!(outcome(ef_call_values_new(context, problem, &values, &mut call)), EF_OK);
            prop_assert!(call.is_null());
            prop_assert_ne!(outcome(ef_call_fp8_new(context, problem, &codes, &mut call)), EF_OK);
            ef_problem_free(problem);
            ef_context_close(context);
        }
    }
}

#[test]
fn null_is_refused_everywhere() {
    // SAFETY: null is what is tested.
    unsafe {
        let statuses = [
            ef_problem_new(ptr::null(), ptr::null_mut()),
            ef_quantize(ptr::null(), ptr::null(), ptr::null_mut()),
            ef_quantized_tensor(ptr::null(), ptr::null_mut()),
            ef_attention(ptr::null(), ptr::null(), ptr::null(), ptr::null(), ptr::null()),
            ef_attention_values(ptr::null(), ptr::null(), ptr::null(), ptr::null(), ptr::null()),
            ef_context_open(ptr::null(), ptr::null_mut()),
            ef_explain(ptr::null(), ptr::null(), ptr::null_mut(), 0, ptr::null_mut()),
            ef_call_values_new(ptr::null(), ptr::null(), ptr::null(), ptr::null_mut()),
            ef_call_fp8_new(ptr::null(), ptr::null(), ptr::null(), ptr::null_mut()),
            ef_call_workspace(ptr::null(), ptr::null_mut(), ptr::null_mut()),
            ef_call_kernel(ptr::null(), ptr::null_mut(), 0, ptr::null_mut()),
            ef_call_launch(ptr::null(), ptr::null(), 0, 0, ptr::null_mut()),
            ef_call_validate(ptr::null(), ptr::null(), 0, 0, ptr::null_mut()),
            ef_paged_attention(ptr::null(), ptr::null(), ptr::null(), ptr::null(), ptr::null(), ptr::null()),
            ef_paged_append(ptr::null(), ptr::null()),
            ef_merge(ptr::null(), ptr::null()),
            ef_cache_new(ptr::null(), ptr::null_mut()),
            ef_cache_open(ptr::null(), ptr::null_mut()),
            ef_cache_close(ptr::null(), 0),
            ef_cache_len(ptr::null(), 0, ptr::null_mut(), ptr::null_mut()),
            ef_cache_append(ptr::null(), 0, EF_F32, ptr::null(), ptr::null(), 0),
            ef_cache_attention(ptr::null(), ptr::null(), ptr::null(), ptr::null(), 0, ptr::null(), ptr::null()),
            ef_paged_call_new(ptr::null(), ptr::null(), ptr::null(), ptr::null_mut()),
            ef_paged_call_workspace(ptr::null(), ptr::null_mut(), ptr::null_mut()),
            ef_paged_call_launch(ptr::null(), 0, ptr::null(), 0, 0, ptr::null_mut()),
            ef_paged_call_validate(ptr::null(), 0, ptr::null(), 0, 0, ptr::null_mut()),
            ef_append_call_new(ptr::null(), ptr::null(), ptr::null_mut()),
            ef_append_call_launch(ptr::null(), 0, ptr::null(), ptr::null_mut()),
            ef_append_call_validate(ptr::null(), 0, ptr::null(), ptr::null_mut()),
            ef_merge_call_new(ptr::null(), 64, EF_F32, ptr::null_mut()),
            ef_merge_call_launch(ptr::null(), 0, ptr::null(), ptr::null(), 0, 0, 0, ptr::null_mut()),
        ];
        assert_eq!(statuses, [EF_INVALID; 31]);
        ef_cache_free(ptr::null_mut());
        ef_paged_call_free(ptr::null_mut());
        ef_append_call_free(ptr::null_mut());
        ef_merge_call_free(ptr::null_mut());
        ef_problem_free(ptr::null_mut());
        ef_quantized_free(ptr::null_mut());
        ef_context_close(ptr::null_mut());
        ef_call_free(ptr::null_mut());
    }
    assert!(last().contains("null"), "{}", last());
}

#[test]
fn a_context_without_a_device_says_so() {
    let args = |device, nvrtc| ef_context_args {
        struct_size: size_of::<ef_context_args>() as u32,
        device,
        nvrtc,
        cache: ptr::null(),
    };
    let mut context = ptr::null_mut();
    // SAFETY: the text is not UTF-8 but ends with a zero.
    unsafe {
        assert_eq!(ef_context_open(&args(-7, ptr::null()), &mut context), EF_INVALID);
        assert_eq!(last(), "device: -7 is no ordinal; pass 0 for the first device, or EF_CPU");
        assert_eq!(ef_context_open(&args(EF_CPU, c"\xff".as_ptr()), &mut context), EF_INVALID);
        assert!(last().starts_with("nvrtc: is not UTF-8"), "{}", last());
        let far = outcome(ef_context_open(&args(i32::MAX, ptr::null()), &mut context));
        assert!(far == EF_INVALID || far == EF_UNAVAILABLE, "{}", last());
        assert!(context.is_null());
    }
}
