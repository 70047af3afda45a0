//! The C interface of Eightfold.
//!
//! Its conventions are stated in the README; the header `include/eightfold.h` is made from this crate by cbindgen, and a test
//! compares the two. Every `unsafe` entry asks of its caller what the conventions ask.

#![allow(clippy::missing_safety_doc, reason = "every entry asks the same, which the conventions state once")]

mod border;
mod cache;
mod call;
pub mod constants;
mod context;
mod host;
mod paged;
mod paged_call;
mod problem;
mod status;
mod tensor;

pub use cache::{
    ef_cache, ef_cache_append, ef_cache_args, ef_cache_attention, ef_cache_close, ef_cache_free, ef_cache_len,
    ef_cache_new, ef_cache_open,
};
pub use call::{
    ef_addresses, ef_call, ef_call_fp8_new, ef_call_free, ef_call_kernel, ef_call_launch, ef_call_validate,
    ef_call_values_new, ef_call_workspace, ef_fp8_call_args, ef_value_call_args,
};
pub use context::{
    EF_ABI_VERSION, ef_abi_version, ef_context, ef_context_args, ef_context_close, ef_context_open, ef_explain,
    ef_version,
};
pub use host::{ef_attention, ef_attention_values, ef_output};
pub use paged::{ef_merge, ef_new_tokens, ef_paged_append, ef_paged_attention, ef_paged_tensor, ef_parts, ef_tables};
pub use paged_call::{
    ef_append_addresses, ef_append_call, ef_append_call_args, ef_append_call_free, ef_append_call_launch,
    ef_append_call_new, ef_append_call_validate, ef_merge_call, ef_merge_call_free, ef_merge_call_launch,
    ef_merge_call_new, ef_paged_addresses, ef_paged_call, ef_paged_call_args, ef_paged_call_free, ef_paged_call_launch,
    ef_paged_call_new, ef_paged_call_validate, ef_paged_call_workspace,
};
pub use problem::{ef_problem, ef_problem_args, ef_problem_free, ef_problem_new};
pub use status::{EF_DEVICE, EF_INTERNAL, EF_INVALID, EF_OK, EF_UNAVAILABLE, ef_last_error, ef_status};
pub use tensor::{
    ef_fp8_tensor, ef_quantize, ef_quantize_args, ef_quantized, ef_quantized_free, ef_quantized_tensor, ef_values,
};
