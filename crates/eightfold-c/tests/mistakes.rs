//! What a caller gets wrong most: each mistake is refused with a sentence that names it, on the host, and on a device where the
//! host can see it or a call looks there.

mod support;

use eightfold::cuda::driver::{Device, Stream};
use eightfold::lab::driver::{Buffer, Plain, upload};
use eightfold_c::constants::*;
use eightfold_c::*;
use std::ptr;
use support::{device, last, must};

const PAGES: u64 = 5;
const PAGE: u64 = 16;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const DIM: u64 = 64;
const ROW: usize = (KV_HEADS * DIM) as usize;
const CODES: usize = (PAGES * PAGE) as usize * ROW;

/// A struct with its size, and zero elsewhere.
macro_rules! sized {
    ($type:ident { $($field:ident: $value:expr),* $(,)? }) => {
        // SAFETY: zero is a value of every field.
        $type { struct_size: size_of::<$type>() as u32, $($field: $value,)* ..unsafe { std::mem::zeroed() } }
    };
}

/// A call must fail so, and say this first.
#[track_caller]
fn refused(status: ef_status, expected: ef_status, text: &str) {
    assert!(status == expected && last().starts_with(text), "{status}: {} for {text}", last());
    assert!(last().contains("; "), "{} says no way out", last());
}

fn problem_args() -> ef_problem_args {
    sized!(ef_problem_args {
        batch: 2,
        query_heads: HEADS,
        kv_heads: KV_HEADS,
        query_len: 1,
        key_len: 32,
        head_dim: DIM,
        output_layout: EF_BSHD,
    })
}

fn problem(args: &ef_problem_args) -> *mut ef_problem {
    let mut problem = ptr::null_mut();
    // SAFETY: the struct is whole.
    must(unsafe { ef_problem_new(args, &mut problem) });
    problem
}

/// A cache in pages on the host, two sequences in it, and a query of each.
struct Host {
    codes: Vec<u8>,
    scales: Vec<f32>,
    table: [i32; 4],
    lengths: [i32; 2],
    starts: [i32; 3],
    q: Vec<f32>,
    out: Vec<f32>,
}

impl Host {
    fn new() -> Host {
        let count = 2 * (HEADS * DIM) as usize;
        Host {
            codes: vec![0x38; CODES],
            scales: vec![1.0; KV_HEADS as usize],
            table: [0, 1, 4, -1],
            lengths: [20, 5],
            starts: [0, 1, 2],
            q: vec![1.0; count],
            out: vec![0.0; count],
        }
    }

    fn cache(&mut self) -> ef_paged_tensor {
        sized!(ef_paged_tensor {
            pages: PAGES,
            page_size: PAGE,
            heads: KV_HEADS,
            head_dim: DIM,
            codes: self.codes.as_mut_ptr(),
            code_count: CODES as u64,
            scales: self.scales.as_mut_ptr(),
            scale_count: KV_HEADS,
            scales_of: EF_SCALE_HEAD,
        })
    }

    /// Attention, after changes to what C hands over.
    fn attend(&mut self, change: impl FnOnce(&mut ef_paged_tensor, &mut ef_tables, &mut ef_values)) -> ef_status {
        let (problem, mut cache) = (problem(&problem_args()), self.cache());
        let mut tables = sized!(ef_tables {
            starts: self.starts.as_ptr(),
            start_count: 3,
            block_table: self.table.as_ptr(),
            block_table_count: 4,
            max_pages: 2,
            lengths: self.lengths.as_ptr(),
            length_count: 2,
        });
        let mut q = sized!(ef_values {
            batch: 1,
            heads: HEADS,
            len: 2,
            head_dim: DIM,
            data: self.q.as_ptr().cast(),
            count: self.q.len() as u64,
            layout: EF_BSHD,
        });
        let output = sized!(ef_output { values: self.out.as_mut_ptr().cast(), value_count: self.out.len() as u64 });
        change(&mut cache, &mut tables, &mut q);
        // SAFETY: addresses and counts are those of vectors that live on.
        unsafe {
            let status = ef_paged_attention(problem, &q, &cache, &cache, &tables, &output);
            ef_problem_free(problem);
            status
        }
    }

    /// An append of two tokens.
    fn append(&mut self, slots: [i64; 2], change: impl FnOnce(&mut ef_paged_tensor, &mut ef_new_tokens)) -> ef_status {
        let values = vec![1.0f32; 2 * ROW];
        let mut new = sized!(ef_new_tokens {
            values: values.as_ptr().cast(),
            value_count: values.len() as u64,
            slots: slots.as_ptr(),
            slot_count: 2,
        });
        let mut cache = self.cache();
        change(&mut cache, &mut new);
        // SAFETY: addresses and counts are those of vectors that live on.
        unsafe { ef_paged_append(&cache, &new) }
    }
}

#[test]
fn mistakes_with_pages_on_the_host_are_named() {
    let host = Host::new;
    must(host().attend(|_, _, _| ()));
    let outside = Host { table: [0, 1, PAGES as i32, -1], ..host() }.attend(|_, _, _| ());
    refused(outside, EF_INVALID, "block_table: entry 0 of sequence 1 is page 5, but the cache has pages 0 to 4");
    let missing = Host { table: [0, -1, 4, -1], ..host() }.attend(|_, _, _| ());
    refused(missing, EF_INVALID, "block_table: entry 1 of sequence 0 is page -1");
    let long = Host { lengths: [33, 5], ..host() }.attend(|_, _, _| ());
    refused(long, EF_INVALID, "lengths: sequence 0 has 33 tokens, but its 2 pages of 16 tokens hold 32");
    let negative = Host { lengths: [20, -5], ..host() }.attend(|_, _, _| ());
    refused(negative, EF_INVALID, "lengths: sequence 1 has -5 tokens");
    let starts = Host { starts: [0, 2, 1], ..host() }.attend(|_, _, _| ());
    refused(starts, EF_INVALID, "cu_seqlens: sequence 1 starts at row 2 and ends at row 1");
    for wrong in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let scale = Host { scales: vec![1.0, wrong], ..host() }.attend(|_, _, _| ());
        refused(scale, EF_INVALID, "k.scales: scale 1 is ");
    }

    let scales = host().attend(|cache, _, _| cache.scales = ptr::null_mut());
    refused(scales, EF_INVALID, "k.scales: is a null pointer");
    refused(host().attend(|cache, _, _| cache.scale_count = 1), EF_INVALID, "k.scales: 1 do not suffice");
    refused(host().attend(|cache, _, _| cache.format = 9), EF_INVALID, "k.format: 9 stands for nothing");
    refused(host().attend(|_, _, q| q.format = 7), EF_INVALID, "q.format: 7 stands for nothing");
    refused(host().attend(|cache, _, _| cache.head_dim = 60), EF_INVALID, "k.head_dim: 60 is not a multiple of 8");
    refused(host().attend(|cache, _, _| cache.heads = 1), EF_INVALID, "k: has 1 heads of 64 channels");
    let overlapping = host().attend(|cache, _, _| {
        (cache.page_stride, cache.token_stride, cache.head_stride) = (PAGE * ROW as u64, 96, DIM);
    });
    refused(overlapping, EF_INVALID, "k.strides: a token every 96 elements overlaps");
    let beyond = host().attend(|cache, _, _| {
        (cache.page_stride, cache.token_stride, cache.head_stride) = (2 * PAGE * ROW as u64, ROW as u64, DIM);
    });
    refused(beyond, EF_INVALID, "k.codes: ");
    refused(
        host().attend(|_, tables, _| tables.length_count = 1),
        EF_INVALID,
        "queries: are of 2 sequences, the keys of 1",
    );
    let odd = host().attend(|cache, _, _| cache.scales = cache.scales.wrapping_byte_add(2));
    refused(odd, EF_INVALID, "k.scales: address ");
}

#[test]
fn mistakes_of_an_append_on_the_host_are_named() {
    let host = Host::new;
    must(host().append([79, -1], |_, _| ()));
    for (slot, text) in
        [(-2, "slots: token 1 has slot -2"), (80, "slots: token 1 has slot 80, but the cache has slots 0 to 79")]
    {
        let mut host = host();
        refused(host.append([0, slot], |_, _| ()), EF_INVALID, text);
        assert!(host.codes.iter().all(|code| *code == 0x38), "what is refused writes nothing");
    }
    let scale = Host { scales: vec![f32::NAN, 1.0], ..host() }.append([0, 1], |_, _| ());
    refused(scale, EF_INVALID, "scales: scale 0 is NaN");
    refused(host().append([0, 1], |_, new| new.format = 5), EF_INVALID, "tokens.format: 5 stands for nothing");
    refused(host().append([0, 1], |_, new| new.value_count -= 1), EF_INVALID, "values: 255 values for 2 slots");
    refused(host().append([0, 1], |cache, _| cache.format = EF_INT8), EF_INVALID, "cache.");
}

/// Attention on three tensors alike, after a change to K.
fn attend_codes(change: impl FnOnce(&mut ef_fp8_tensor)) -> ef_status {
    let (codes, scales) = ([0x38u8; 2 * 64], [1.0f32; 2]);
    let tensor = || {
        sized!(ef_fp8_tensor {
            batch: 1,
            heads: 2,
            len: 1,
            head_dim: DIM,
            codes: codes.as_ptr(),
            code_count: codes.len() as u64,
            scales: scales.as_ptr(),
            scale_count: 2,
        })
    };
    let (q, mut k, v) = (tensor(), tensor(), tensor());
    change(&mut k);
    attend_with(|problem, output| {
        // SAFETY: addresses and counts are those of arrays that live on, or are refused.
        unsafe { ef_attention(problem, &q, &k, &v, output) }
    })
}

/// The same on values.
fn attend_values(change: impl FnOnce(&mut ef_values)) -> ef_status {
    let data = [1.0f32; 2 * 64];
    let tensor =
        || sized!(ef_values { batch: 1, heads: 2, len: 1, head_dim: DIM, data: data.as_ptr().cast(), count: 128 });
    let (q, mut k, v) = (tensor(), tensor(), tensor());
    change(&mut k);
    attend_with(|problem, output| {
        // SAFETY: as above.
        unsafe { ef_attention_values(problem, &q, &k, &v, output) }
    })
}

fn attend_with(attend: impl FnOnce(*const ef_problem, &ef_output) -> ef_status) -> ef_status {
    let sizes = ef_problem_args { batch: 1, query_heads: 2, kv_heads: 2, key_len: 1, ..problem_args() };
    let (problem, mut out) = (problem(&sizes), [0.0f32; 2 * 64]);
    let output = sized!(ef_output { values: out.as_mut_ptr().cast(), value_count: 128 });
    let status = attend(problem, &output);
    // SAFETY: it was just made.
    unsafe { ef_problem_free(problem) };
    status
}

#[test]
fn mistakes_with_tensors_on_the_host_are_named() {
    must(attend_codes(|_| ()));
    refused(attend_codes(|k| k.scales = ptr::null()), EF_INVALID, "k.scales: is a null pointer");
    refused(attend_codes(|k| k.scale_count = 1), EF_INVALID, "k.scales: has 1 elements where 2 are needed");
    let odd = attend_codes(|k| k.scales = k.scales.wrapping_byte_add(1));
    refused(odd, EF_INVALID, "k.scales: address ");
    for wrong in [f32::NAN, f32::NEG_INFINITY, 0.0] {
        let scales = [1.0, wrong];
        refused(attend_codes(|k| k.scales = scales.as_ptr()), EF_INVALID, "k.scales: scale 1 is ");
    }
    let broken = [0x7fu8; 2 * 64];
    refused(attend_codes(|k| k.codes = broken.as_ptr()), EF_INVALID, "k.codes: code 0x7f at index 0 is NaN");
    refused(attend_codes(|k| k.format = EF_E5M2), EF_INVALID, "k: is in e5m2, but the problem says e4m3");
    refused(attend_codes(|k| k.format = 8), EF_INVALID, "k.format: 8 stands for nothing");
    refused(attend_codes(|k| k.layout = EF_BHDS), EF_INVALID, "k: ");
    refused(attend_codes(|k| (k.heads, k.len) = (1, 2)), EF_INVALID, "k.scales: has 2 elements where 1 are needed");
    refused(attend_codes(|k| (k.len, k.head_dim) = (2, 32)), EF_INVALID, "k: has dims ");

    must(attend_values(|_| ()));
    let broken = [f32::NAN; 2 * 64];
    refused(attend_values(|k| k.data = broken.as_ptr().cast()), EF_INVALID, "k: NaN at batch 0, head 0, row 0");
    refused(attend_values(|k| k.data = ptr::null()), EF_INVALID, "k: is a null pointer");
    refused(attend_values(|k| k.count = 127), EF_INVALID, "k: has 127 elements where 128 are needed");
    refused(attend_values(|k| k.format = 5), EF_INVALID, "k.format: 5 stands for nothing");
    refused(attend_values(|k| (k.len, k.head_dim) = (2, 32)), EF_INVALID, "k: has dims ");
}

/// Calls on tensors in device memory that nothing can serve, and addresses that nothing can be at.
#[test]
fn mistakes_with_tensors_on_a_device_are_named() {
    let Some((device, stream)) = device() else { return };
    let sizes = ef_problem_args { batch: 1, query_heads: 2, kv_heads: 2, query_len: 32, key_len: 32, ..problem_args() };
    let (on_device, on_cpu, problem) = (context(0), context(EF_CPU), problem(&sizes));
    let values = |context, args: ef_value_call_args| {
        let mut call = ptr::dangling_mut();
        // SAFETY: structs are whole, and handles were just made.
        unsafe {
            let status = ef_call_values_new(context, problem, &args, &mut call);
            ef_call_free(call);
            status
        }
    };
    let sound = sized!(ef_value_call_args { format: EF_BF16, layout: EF_BSHD });
    must(values(on_device, sound));
    refused(values(on_cpu, sound), EF_INVALID, "context: is the CPU's");
    refused(values(on_device, ef_value_call_args { format: 6, ..sound }), EF_INVALID, "format: 6 stands for nothing");
    let odd = ef_value_call_args { k_strides: [32 * 132, 64, 132, 1], ..sound };
    refused(values(on_device, odd), EF_INVALID, "k: the row stride of 132 elements");
    let apart = ef_value_call_args { v_strides: [64 * 256, 128, 256, 2], ..sound };
    refused(values(on_device, apart), EF_INVALID, "v: channels are 2 elements apart");

    let memory = put(&device, &stream, &[0u8; 32 * 128 * 2]);
    let mut call = ptr::null_mut();
    let args = sized!(ef_fp8_call_args { layout: EF_BSHD });
    let mut bytes = 0;
    // SAFETY: as above.
    unsafe {
        must(ef_call_fp8_new(on_device, problem, &args, &mut call));
        must(ef_call_workspace(call, &mut bytes, ptr::null_mut()));
    }
    let workspace = device.allocate(bytes.max(256) as usize).unwrap();
    let at = memory.pointer();
    let launch = |change: &dyn Fn(&mut ef_addresses)| {
        let mut addresses =
            sized!(ef_addresses { q: at, k: at, v: at, output: at, q_scales: at, k_scales: at, v_scales: at });
        change(&mut addresses);
        // SAFETY: what is launched is refused before.
        unsafe { ef_call_launch(call, &addresses, workspace.pointer(), bytes, stream.as_raw()) }
    };
    refused(launch(&|at| at.k_scales = 0), EF_INVALID, "scales of k: address 0x0");
    refused(launch(&|at| at.v_scales += 2), EF_INVALID, "scales of v: address");
    refused(launch(&|at| at.q += 8), EF_INVALID, "q: address");
    refused(launch(&|at| at.output = 0), EF_INVALID, "output: address");
    // SAFETY: they were made above.
    unsafe {
        ef_call_free(call);
        ef_problem_free(problem);
        ef_context_close(on_device);
        ef_context_close(on_cpu);
    }
}

fn context(device: i32) -> *mut ef_context {
    let args = sized!(ef_context_args { device: device });
    let mut context = ptr::null_mut();
    // SAFETY: the struct is whole.
    must(unsafe { ef_context_open(&args, &mut context) });
    context
}

fn paged_args() -> ef_paged_call_args {
    sized!(ef_paged_call_args { query_format: EF_BF16, pages: PAGES, page_size: PAGE, scales_of: EF_SCALE_HEAD })
}

fn append_args() -> ef_append_call_args {
    sized!(ef_append_call_args {
        value_format: EF_BF16,
        scales_of: EF_SCALE_HEAD,
        pages: PAGES,
        page_size: PAGE,
        kv_heads: KV_HEADS,
        head_dim: DIM,
    })
}

/// What calls on pages cannot be made for.
#[test]
fn calls_that_no_kernel_can_serve_are_named() {
    if device().is_none() {
        return;
    }
    let (on_device, on_cpu) = (context(0), context(EF_CPU));
    let attend = |context, problem: ef_problem_args, args: ef_paged_call_args| {
        let (problem, mut call) = (self::problem(&problem), ptr::dangling_mut());
        // SAFETY: structs are whole, and handles were just made.
        unsafe {
            let status = ef_paged_call_new(context, problem, &args, &mut call);
            assert!(call.is_null() == (status != EF_OK));
            ef_paged_call_free(call);
            ef_problem_free(problem);
            status
        }
    };
    let cache = |k_strides| ef_paged_call_args { k_strides, ..paged_args() };
    let (sound, row) = (problem_args(), ROW as u64);
    must(attend(on_device, sound, paged_args()));
    refused(attend(on_cpu, sound, paged_args()), EF_INVALID, "context: ");
    let odd = attend(on_device, sound, cache([PAGE * (row + 8), row + 8, DIM]));
    refused(odd, EF_INVALID, "k: has a token every 136 codes, not a multiple of 16");
    let overlapping = attend(on_device, sound, cache([PAGE * row, row, 48]));
    refused(overlapping, EF_INVALID, "strides: a head every 48 elements overlaps");
    let values = ef_paged_call_args { v_strides: [2 * PAGE * row, 2 * row, 72], ..paged_args() };
    refused(attend(on_device, sound, values), EF_INVALID, "v: has a head every 72 codes");
    let queries = ef_paged_call_args { q_strides: [HEADS * DIM + 4, DIM, HEADS * DIM, 1], ..paged_args() };
    refused(attend(on_device, sound, queries), EF_INVALID, "q: its batch stride of 260 elements");
    let apart = ef_paged_call_args { q_strides: [2 * HEADS * DIM, 2 * DIM, 2 * HEADS * DIM, 2], ..paged_args() };
    refused(attend(on_device, sound, apart), EF_INVALID, "q: its channels are 2 elements apart");
    let format = ef_paged_call_args { query_format: 9, ..paged_args() };
    refused(attend(on_device, sound, format), EF_INVALID, "query_format: 9 stands for nothing");
    refused(attend(on_device, sound, ef_paged_call_args { pages: 0, ..paged_args() }), EF_INVALID, "pages: must be");
    let narrow = ef_problem_args { head_dim: 72, ..sound };
    refused(
        attend(on_device, narrow, paged_args()),
        EF_UNAVAILABLE,
        "the paged kernel is not available: it is written",
    );
    assert!(last().contains("CPU"), "{}", last());

    let append = |args: ef_append_call_args| {
        let mut call = ptr::dangling_mut();
        // SAFETY: as above.
        unsafe {
            let status = ef_append_call_new(on_device, &args, &mut call);
            ef_append_call_free(call);
            status
        }
    };
    must(append(append_args()));
    let rows = ef_append_call_args { new_k_strides: [row + 4, DIM], ..append_args() };
    refused(append(rows), EF_INVALID, "k: its row stride of 132 elements is not a multiple of 16 bytes");
    let rows = ef_append_call_args { k_strides: [PAGE * (row + 8), row + 8, DIM], ..append_args() };
    refused(append(rows), EF_INVALID, "k: has a token every 136 codes");
    let scales = ef_append_call_args { scales_of: EF_SCALE_SEQUENCE, ..append_args() };
    refused(append(scales), EF_INVALID, "scales: are by sequence");
    refused(append(ef_append_call_args { cache_format: EF_INT8, ..append_args() }), EF_INVALID, "format: ");
    refused(append(ef_append_call_args { value_format: 4, ..append_args() }), EF_INVALID, "value_format: 4 stands");
    // SAFETY: they were made above.
    unsafe {
        ef_context_close(on_device);
        ef_context_close(on_cpu);
    }
}

/// Device memory that holds these numbers.
fn put<T: Plain>(device: &Device, stream: &Stream, values: &[T]) -> Buffer {
    let buffer = device.allocate(size_of_val(values)).unwrap();
    upload(stream, &buffer, values).unwrap();
    buffer
}

/// What only the device can see: `ef_paged_call_validate` and `ef_append_call_validate` look there.
#[test]
fn mistakes_in_device_memory_are_found_by_validating() {
    let Some((device, stream)) = device() else { return };
    let raw = stream.as_raw();
    let (context, problem) = (context(0), problem(&problem_args()));
    let [mut codes, mut bf16] = [ptr::null_mut(); 2];
    let (mut append, mut own_scales) = (ptr::null_mut(), ptr::null_mut());
    let fp8 = ef_paged_call_args { query_format: EF_FP8, ..paged_args() };
    let computed = ef_append_call_args { scales_of: EF_SCALE_TOKEN, ..append_args() };
    let mut size = 0;
    // SAFETY: structs are whole, and handles were just made.
    unsafe {
        must(ef_paged_call_new(context, problem, &paged_args(), &mut bf16));
        must(ef_paged_call_new(context, problem, &fp8, &mut codes));
        must(ef_append_call_new(context, &append_args(), &mut append));
        must(ef_append_call_new(context, &computed, &mut own_scales));
        must(ef_paged_call_workspace(bf16, &mut size, ptr::null_mut()));
    }
    let workspace = put(&device, &stream, &vec![0u8; size as usize]);
    let cache = put(&device, &stream, &[0x38u8; CODES]);
    let memory = put(&device, &stream, &[0u8; 4 * ROW]);
    let sound = put(&device, &stream, &[1.0f32; (PAGES * PAGE * KV_HEADS) as usize]);
    let q_scales = put(&device, &stream, &[1.0f32; 2 * HEADS as usize]);

    let validate = |call, table: [i32; 4], lengths: [i32; 2], k_scales: &Buffer, q_scales: u64| {
        let (table, lengths) = (put(&device, &stream, &table), put(&device, &stream, &lengths));
        let addresses = sized!(ef_paged_addresses {
            q: memory.pointer(),
            q_scales: q_scales,
            k: cache.pointer(),
            k_scales: k_scales.pointer(),
            v: cache.pointer(),
            v_scales: sound.pointer(),
            block_table: table.pointer(),
            max_pages: 2,
            lengths: lengths.pointer(),
            output: memory.pointer(),
        });
        // SAFETY: the handle is alive, and there is as much at the addresses.
        unsafe { ef_paged_call_validate(call, 2, &addresses, workspace.pointer(), size, raw) }
    };
    must(validate(bf16, [0, 1, 4, -1], [20, 5], &sound, 0));
    must(validate(codes, [0, 1, 4, -1], [20, 0], &sound, q_scales.pointer()));
    let outside = validate(bf16, [0, 1, 5, -1], [20, 5], &sound, 0);
    refused(outside, EF_INVALID, "block_table: entry 0 of sequence 1 is no page of the cache, which has pages 0 to 4");
    let missing = validate(bf16, [0, -1, 4, -1], [20, 5], &sound, 0);
    refused(missing, EF_INVALID, "block_table: entry 1 of sequence 0");
    let long = validate(bf16, [0, 1, 4, -1], [33, 5], &sound, 0);
    refused(long, EF_INVALID, "lengths: that of sequence 0 is negative, or more than 32 keys");
    refused(validate(bf16, [0, 1, 4, -1], [20, -1], &sound, 0), EF_INVALID, "lengths: that of sequence 1");
    for wrong in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let scales = put(&device, &stream, &[1.0, wrong]);
        let status = validate(bf16, [0, 1, 4, -1], [20, 5], &scales, 0);
        refused(status, EF_INVALID, "scales: one of the queries, keys or values of sequence 0 is not");
    }
    let scales = put(&device, &stream, &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, f32::NAN, 1.0]);
    let status = validate(codes, [0, 1, 4, -1], [20, 5], &sound, scales.pointer());
    refused(status, EF_INVALID, "scales: one of the queries, keys or values of sequence 1 is not");
    refused(validate(codes, [0, 1, 4, -1], [20, 5], &sound, 0), EF_INVALID, "q_scales: ");
    let values = validate(bf16, [0, 1, 4, -1], [20, 5], &sound, q_scales.pointer());
    refused(values, EF_INVALID, "q_scales: is given, but");

    let look = |call, slots: [i64; 2], scales: &Buffer, misaligned: u64| {
        let slots = put(&device, &stream, &slots);
        let addresses = sized!(ef_append_addresses {
            new_k: memory.pointer() + misaligned,
            new_v: memory.pointer(),
            slots: slots.pointer(),
            k: cache.pointer(),
            v: cache.pointer(),
            k_scales: sound.pointer(),
            v_scales: scales.pointer(),
        });
        // SAFETY: as above.
        unsafe { ef_append_call_validate(call, 2, &addresses, raw) }
    };
    must(look(append, [79, -1], &sound, 0));
    for (slot, call) in [(-2, append), (80, append), (i64::MIN, own_scales), (i64::MAX, own_scales)] {
        let told = "slots: that of token 1 is neither −1 nor one of the cache's 80";
        refused(look(call, [0, slot], &sound, 0), EF_INVALID, told);
    }
    let wrong = put(&device, &stream, &[1.0, f32::NAN]);
    let status = look(append, [0, 1], &wrong, 0);
    refused(status, EF_INVALID, "scales: that of the keys or values of head 1 is not finite and positive");
    // Scales of tokens are written, whatever they were.
    must(look(own_scales, [0, 1], &sound, 0));
    refused(look(append, [0, 1], &sound, 8), EF_INVALID, "k: address");
    // SAFETY: they were made above, and the stream was waited for.
    unsafe {
        ef_paged_call_free(codes);
        ef_paged_call_free(bf16);
        ef_append_call_free(append);
        ef_append_call_free(own_scales);
        ef_problem_free(problem);
        ef_context_close(context);
    }
}
