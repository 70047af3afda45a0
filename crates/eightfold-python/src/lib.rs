//! The native half of the Python package `eightfold`: addresses, strides and a stream go in as integers.
//!
//! Nothing here knows numpy or torch. The Python files beside it find addresses and strides, allocate outputs, and keep alive
//! what the device still reads.

mod failure;
mod host;
mod inspect;
mod paged;
mod plan;
mod processes;
mod words;

use pyo3::prelude::*;

#[pymodule]
fn _eightfold(module: &Bound<'_, PyModule>) -> PyResult<()> {
    failure::add(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<plan::Plan>()?;
    module.add_function(wrap_pyfunction!(plan::plan_values, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan_codes, module)?)?;
    module.add_function(wrap_pyfunction!(host::attend_values, module)?)?;
    module.add_function(wrap_pyfunction!(host::attend_codes, module)?)?;
    module.add_function(wrap_pyfunction!(host::round_trip, module)?)?;
    module.add_function(wrap_pyfunction!(host::reference, module)?)?;
    module.add_class::<paged::plan::PagedPlan>()?;
    module.add_class::<paged::plan::AppendPlan>()?;
    module.add_class::<paged::plan::MergePlan>()?;
    module.add_function(wrap_pyfunction!(paged::plan::plan_paged, module)?)?;
    module.add_function(wrap_pyfunction!(paged::plan::plan_append, module)?)?;
    module.add_function(wrap_pyfunction!(paged::plan::plan_merge, module)?)?;
    module.add_function(wrap_pyfunction!(paged::host::paged_attend, module)?)?;
    module.add_function(wrap_pyfunction!(paged::host::paged_append, module)?)?;
    module.add_function(wrap_pyfunction!(paged::host::merge_parts, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::explain, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::choose_format, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::devices, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::compiler, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::configure, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::cpu, module)?)?;
    Ok(())
}
