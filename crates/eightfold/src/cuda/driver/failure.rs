//! What the driver's error codes mean for the caller.

use crate::error::{Error, Result};
use cudarc::driver::sys::CUresult;

/// CUDA's name of the code, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub(super) fn name(result: CUresult) -> String {
    format!("{result:?}")
}

/// Codes that the bindings of CUDA 12 lack, which the feature `cuda-13000` can be turned off for, by number.
const CALL_REQUIRES_NEWER_DRIVER: u32 = 36;
const TENSOR_MEMORY_LEAK: u32 = 721;
const CONTAINED: u32 = 226;

/// Whether the context is beyond use after this error.
pub(super) fn destroys_context(result: CUresult) -> bool {
    use CUresult::*;
    matches!(
        result,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_EXTERNAL_DEVICE
            | CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEINITIALIZED
    ) || matches!(result as u32, TENSOR_MEMORY_LEAK | CONTAINED)
}

/// The outcome of a driver call as this crate's error.
pub(super) fn outcome(call: &str, result: CUresult) -> Result<()> {
    use CUresult::*;
    if result == CUDA_SUCCESS {
        // Every launch passes here: nothing is formatted.
        return Ok(());
    }
    let name = name(result);
    let cannot_load = || {
        Err(Error::unavailable(
            "CUDA",
            format!("the driver cannot load what NVRTC compiled ({call}: {name})"),
            "update the NVIDIA driver to the CUDA version of NVRTC or later, or use an NVRTC as old as the driver",
        ))
    };
    match result {
        CUDA_ERROR_NO_DEVICE => Err(Error::unavailable(
            "CUDA",
            format!("{call} finds no NVIDIA GPU that this process may use ({name})"),
            "run where there is one, check CUDA_VISIBLE_DEVICES, or use the cpu kernel",
        )),
        CUDA_ERROR_STUB_LIBRARY => Err(Error::unavailable(
            "CUDA",
            format!("the libcuda that was found is the toolkit's stub, not a driver ({name})"),
            "take the stubs folder out of the library path, install the NVIDIA driver, or use the cpu kernel",
        )),
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUDA_ERROR_INVALID_IMAGE
        | CUDA_ERROR_INVALID_PTX
        | CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => cannot_load(),
        _ if result as u32 == CALL_REQUIRES_NEWER_DRIVER => cannot_load(),
        CUDA_ERROR_OUT_OF_MEMORY => Err(Error::unavailable(
            "device memory",
            format!("{call} found too little of it ({name})"),
            "make the problem smaller, or end what else uses the device",
        )),
        _ => Err(Error::Device { call: call.into(), name, fix: fix(result).into() }),
    }
}

fn fix(result: CUresult) -> &'static str {
    use CUresult::*;
    match result {
        CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_MISALIGNED_ADDRESS | CUDA_ERROR_INVALID_ADDRESS_SPACE => {
            "a kernel went outside its memory and the context is lost: start the process again, and find the place \
             with compute-sanitizer"
        }
        CUDA_ERROR_LAUNCH_TIMEOUT => {
            "a kernel ran past the display's time limit and the context is lost: start the process again, and use a \
             device without a display"
        }
        _ if destroys_context(result) => {
            "the context is lost: start the process again; if it happens again, look into the system log for the \
             driver's Xid message"
        }
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => "the kernel asks for more registers or threads than a block can have",
        CUDA_ERROR_INVALID_VALUE => "an argument is outside what the device allows; check sizes and pointers",
        CUDA_ERROR_INVALID_HANDLE | CUDA_ERROR_INVALID_CONTEXT => {
            "a stream, event or graph belongs to another device or was destroyed"
        }
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        | CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | CUDA_ERROR_STREAM_CAPTURE_ISOLATION => {
            "while a stream is captured only launches may be put into it: allocate, upload and synchronise before"
        }
        CUDA_ERROR_DEVICE_UNAVAILABLE => "another process holds the device for itself; wait for it, or use another",
        CUDA_ERROR_SYSTEM_NOT_READY => "start the services that the device needs, such as the fabric manager",
        CUDA_ERROR_NOT_FOUND => "the compiled code lacks the function; clear the cubin cache",
        _ => "look the name up in the documentation of the CUDA driver",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "cuda-13000")]
    #[test]
    fn codes_by_number_are_those_of_the_bindings() {
        let codes = [
            CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
            CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            CUresult::CUDA_ERROR_CONTAINED,
        ];
        assert_eq!(codes.map(|code| code as u32), [CALL_REQUIRES_NEWER_DRIVER, TENSOR_MEMORY_LEAK, CONTAINED]);
    }

    #[test]
    fn a_failure_carries_the_call_the_name_and_the_fix() {
        let error = outcome("cuStreamSynchronize", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap_err();
        let Error::Device { call, name, fix } = &error else { panic!("{error}") };
        assert_eq!((call.as_str(), name.as_str()), ("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert!(fix.contains("start the process again"), "{fix}");
        assert!(error.to_string().starts_with("cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS; "), "{error}");
    }

    #[test]
    fn what_the_machine_lacks_is_unavailable() {
        for (result, words) in [
            (CUresult::CUDA_ERROR_NO_DEVICE, "no NVIDIA GPU"),
            (CUresult::CUDA_ERROR_STUB_LIBRARY, "stub"),
            (CUresult::CUDA_ERROR_INVALID_IMAGE, "cannot load what NVRTC compiled"),
            (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "cannot load what NVRTC compiled"),
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "too little"),
        ] {
            let error = outcome("cuCall", result).unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(words) && text.contains(&format!("{result:?}")), "{text}");
        }
        assert_eq!(outcome("cuCall", CUresult::CUDA_SUCCESS), Ok(()));
    }

    #[test]
    fn errors_of_kernels_destroy_the_context_and_errors_of_arguments_do_not() {
        for result in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_ASSERT,
        ] {
            assert!(destroys_context(result), "{result:?}");
        }
        for result in [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_NOT_READY,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        ] {
            assert!(!destroys_context(result), "{result:?}");
        }
    }
}
