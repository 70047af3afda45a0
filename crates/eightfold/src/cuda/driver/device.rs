//! Devices and what they say about themselves.

use super::context::Context;
use super::failure::outcome;
use super::library::{driver_version, version_text};
use super::memory::Buffer;
use super::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};
use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, PoisonError};

/// What a device says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its place in the driver's list.
    pub ordinal: usize,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Device memory.
    pub memory_bytes: usize,
    /// The second-level cache.
    pub l2_bytes: usize,
    /// The most shared memory that one block can have.
    pub max_shared_bytes: usize,
    /// The highest clock of the multiprocessors.
    pub clock_khz: usize,
    /// The clock of its memory.
    pub memory_clock_khz: usize,
    /// The width of the bus to its memory.
    pub memory_bus_bits: usize,
    /// The version of the driver, such as `13.0`.
    pub driver: String,
}

/// A device with its primary context. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Device {
    info: Arc<DeviceInfo>,
    context: Arc<Context>,
}

/// Free and total device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What can still be allocated.
    pub free_bytes: usize,
    /// All there is.
    pub total_bytes: usize,
}

impl Device {
    /// The device of this ordinal; its own clear error for: no driver library, driver too old, no device. Opened once per
    /// process.
    pub fn open(ordinal: usize) -> Result<Device> {
        // One context object per device, so that everyone learns of its loss.
        static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.iter().find(|device| device.info.ordinal == ordinal) {
            return Ok(device.clone());
        }
        let driver = driver_version()?;
        check_ordinal(ordinal, count()?)?;
        let handle = handle(ordinal)?;
        let info = describe(ordinal, handle, driver)?;
        let context = Arc::new(Context::retain(ordinal, handle)?);
        let device = Device { info: Arc::new(info), context };
        open.push(device.clone());
        Ok(device)
    }

    /// Device 0, opened once per process.
    #[expect(clippy::should_implement_trait, reason = "a trait's default cannot fail, and this is the default device")]
    #[doc(hidden)]
    pub fn default() -> Result<Device> {
        Device::open(0)
    }

    /// Every device of this machine, whether or not a kernel is compiled for it.
    pub fn list() -> Result<Vec<DeviceInfo>> {
        let driver = driver_version()?;
        (0..count()?).map(|ordinal| describe(ordinal, handle(ordinal)?, driver)).collect()
    }

    /// What it says about itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Why nothing more can be done with the device in this process; none while all is well.
    pub fn loss(&self) -> Option<Error> {
        self.context.loss()
    }

    /// A new stream.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Uninitialised device memory; too little left is [`Error::Unavailable`] with how much was asked and is left.
    #[doc(hidden)]
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        Buffer::new(self.context.clone(), bytes)
    }

    /// Its address on the PCI bus, such as `00000000:3B:00.0`, by which the driver's other libraries know it.
    #[doc(hidden)]
    pub fn pci_bus_id(&self) -> Result<String> {
        let mut text: [c_char; 32] = [0; 32];
        let device = handle(self.info.ordinal)?;
        // SAFETY: the driver writes at most as many characters as it is told, the last a zero.
        let result = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) };
        outcome("cuDeviceGetPCIBusId", result)?;
        // SAFETY: the call above succeeded and ended the text with a zero.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// How much device memory is left.
    #[doc(hidden)]
    pub fn memory(&self) -> Result<MemoryInfo> {
        let (free_bytes, total_bytes) = super::memory::free_and_total_bytes(&self.context)?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

fn count() -> Result<usize> {
    let mut count = 0;
    // SAFETY: the driver is initialised, and `count` outlives the call.
    outcome("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

fn check_ordinal(ordinal: usize, count: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::unavailable(
            "CUDA",
            "the driver finds no NVIDIA GPU that this process may use (CUDA_ERROR_NO_DEVICE)",
            "run where there is one, check CUDA_VISIBLE_DEVICES, or use the cpu kernel",
        ));
    }
    if ordinal >= count {
        return Err(Error::invalid(
            "device",
            format!("there is no device {ordinal}: the driver lists {count}"),
            format!("choose one of 0 to {}", count - 1),
        ));
    }
    Ok(())
}

fn handle(ordinal: usize) -> Result<CUdevice> {
    let mut device = 0;
    // The driver's own count bounds the ordinal.
    // SAFETY: the driver is initialised, and `device` outlives the call.
    outcome("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
    Ok(device)
}

fn describe(ordinal: usize, device: CUdevice, driver: i32) -> Result<DeviceInfo> {
    use CUdevice_attribute::*;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `device` came from the driver, and `value` outlives the call.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
        outcome("cuDeviceGetAttribute", result).map(|()| value)
    };
    let size = |name| attribute(name).map(|value| usize::try_from(value).unwrap_or(0));
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes at most as many characters as it is told, the last a zero.
    outcome("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) })?;
    let mut memory_bytes = 0;
    // SAFETY: `device` came from the driver, and `memory_bytes` outlives the call.
    outcome("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory_bytes, device) })?;
    Ok(DeviceInfo {
        ordinal,
        // SAFETY: the call above succeeded and ended the name with a zero.
        name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
        capability: (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: size(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes,
        l2_bytes: size(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        max_shared_bytes: size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        clock_khz: size(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: size(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: size(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        driver: version_text(driver),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinal_that_is_not_there_is_refused() {
        assert_eq!(check_ordinal(1, 2), Ok(()));
        let error = check_ordinal(2, 2).unwrap_err().to_string();
        assert_eq!(error, "device: there is no device 2: the driver lists 2; choose one of 0 to 1");
        assert!(check_ordinal(0, 0).unwrap_err().to_string().contains("CUDA_ERROR_NO_DEVICE"));
    }
}
