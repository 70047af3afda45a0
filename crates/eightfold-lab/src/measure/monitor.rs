//! A device's clocks, power and temperature, from the driver's management library (NVML), loaded where it is there.

use eightfold::cuda::driver::Device;
use eightfold::{Error, Result};
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};

/// What a device says about itself at one moment; none where it does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// The clock of the multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// The power drawn.
    pub power_mw: Option<u32>,
    /// The temperature.
    pub temperature_c: Option<u32>,
    /// What holds the clocks down, as NVML's bits.
    pub throttle_reasons: Option<u64>,
}

/// A device that can be asked again and again.
pub struct Monitor {
    device: *mut c_void,
    clock: Clock,
    power: Number,
    temperature: Clock,
    reasons: Reasons,
}

type Start = unsafe extern "C" fn() -> c_int;
type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type Clock = unsafe extern "C" fn(*mut c_void, c_int, *mut c_uint) -> c_int;
type Number = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int;
type Reasons = unsafe extern "C" fn(*mut c_void, *mut c_ulonglong) -> c_int;

/// The library's name on Linux and on Windows.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "nvml.dll"];

const SUCCESS: c_int = 0;
/// NVML's numbers for the clock of the multiprocessors, and for the sensor of the chip.
const SM_CLOCK: c_int = 1;
const CHIP_SENSOR: c_int = 0;

impl Monitor {
    /// The monitor of a device; [`Error::Unavailable`] where the library is not there or does not know it.
    pub fn of(device: &Device) -> Result<Monitor> {
        let unavailable =
            |reason: String| Error::unavailable("NVML", reason, "install the driver's management library");
        let bus_id = CString::new(device.pci_bus_id()?).map_err(|error| unavailable(error.to_string()))?;
        let mut reason = String::new();
        // SAFETY: loading runs the library's initialisers; NVML is made to be loaded by any process.
        let library = NAMES.iter().find_map(|name| match unsafe { Library::new(*name) } {
            Ok(library) => Some(library),
            Err(error) => {
                reason = if reason.is_empty() { error.to_string() } else { std::mem::take(&mut reason) };
                None
            }
        });
        // Never unloaded: NVML stays started, and may have threads of its own.
        let library: &'static Library = Box::leak(Box::new(library.ok_or_else(|| unavailable(reason))?));
        // SAFETY: the types are those of NVML's header, and the functions are called only while the library is loaded.
        let functions = unsafe {
            (|| {
                Ok::<_, libloading::Error>((
                    *library.get::<Start>(b"nvmlInit_v2\0")?,
                    *library.get::<Find>(b"nvmlDeviceGetHandleByPciBusId_v2\0")?,
                    *library.get::<Clock>(b"nvmlDeviceGetClockInfo\0")?,
                    *library.get::<Number>(b"nvmlDeviceGetPowerUsage\0")?,
                    *library.get::<Clock>(b"nvmlDeviceGetTemperature\0")?,
                    *library.get::<Reasons>(b"nvmlDeviceGetCurrentClocksThrottleReasons\0")?,
                ))
            })()
        };
        let (start, find, clock, power, temperature, reasons) =
            functions.map_err(|error| unavailable(error.to_string()))?;
        // SAFETY: the library is loaded; it counts its starts, and stays started until the process ends.
        check("nvmlInit", unsafe { start() }).map_err(unavailable)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: NVML is started, the name ends with a zero, and `handle` outlives the call.
        check("nvmlDeviceGetHandleByPciBusId", unsafe { find(bus_id.as_ptr(), &mut handle) }).map_err(unavailable)?;
        Ok(Monitor { device: handle, clock, power, temperature, reasons })
    }

    /// How it is now.
    pub fn read(&self) -> Reading {
        let mut value = 0;
        // SAFETY: the handle came from NVML, which stays started; the numbers outlive the calls.
        let sm_clock_mhz = told(unsafe { (self.clock)(self.device, SM_CLOCK, &mut value) }, &value);
        // SAFETY: as above.
        let power_mw = told(unsafe { (self.power)(self.device, &mut value) }, &value);
        // SAFETY: as above.
        let temperature_c = told(unsafe { (self.temperature)(self.device, CHIP_SENSOR, &mut value) }, &value);
        let mut bits = 0;
        // SAFETY: as above.
        let throttle_reasons = told(unsafe { (self.reasons)(self.device, &mut bits) }, &bits);
        Reading { sm_clock_mhz, power_mw, temperature_c, throttle_reasons }
    }
}

fn told<T: Copy>(code: c_int, value: &T) -> Option<T> {
    (code == SUCCESS).then_some(*value)
}

fn check(call: &str, code: c_int) -> std::result::Result<(), String> {
    if code == SUCCESS { Ok(()) } else { Err(format!("{call} gave error {code}")) }
}
