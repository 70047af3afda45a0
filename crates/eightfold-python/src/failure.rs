//! The library's errors as Python's exceptions.

use eightfold::Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    eightfold,
    Unavailable,
    PyRuntimeError,
    "What was asked for is sound, but this machine cannot serve it."
);
create_exception!(eightfold, DeviceError, PyRuntimeError, "A call of the device's driver failed.");

/// A mistake in an argument is a `ValueError`; each names what, why and the fix.
pub(crate) fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid { .. } => PyValueError::new_err(text),
        Error::Device { .. } => DeviceError::new_err(text),
        _ => Unavailable::new_err(text),
    }
}

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Unavailable", module.py().get_type::<Unavailable>())?;
    module.add("DeviceError", module.py().get_type::<DeviceError>())
}
