//! Modules: compiled code in the driver's hands, and the functions in it.

use super::context::Context;
use super::device::Device;
use super::stream::Stream;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_union__bindgen_ty_1, CUlaunchConfig, CUmodule, CUstream,
};
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

/// Compiled code, loaded.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

/// A kernel of a loaded module. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    module: Arc<Module>,
    raw: CUfunction,
}

// SAFETY: the driver's functions may be called from any thread; the handle is a name, never dereferenced here.
unsafe impl Send for Module {}
// SAFETY: as above; nothing of a module changes.
unsafe impl Sync for Module {}
// SAFETY: as for the module, which lives as long.
unsafe impl Send for Function {}
// SAFETY: as for the module, which lives as long.
unsafe impl Sync for Function {}

/// How many blocks of how many threads, with how much shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) dynamic_shared_bytes: usize,
    /// Blocks, one after the other, that start together and can reach each other's shared memory; they divide the blocks.
    pub(crate) cluster: u32,
}

impl Module {
    /// Loads a whole ELF file.
    pub(crate) fn load(device: &Device, image: &[u8]) -> Result<Arc<Module>> {
        let context = device.context().clone();
        let mut raw = ptr::null_mut();
        // SAFETY: the image is a whole ELF file that outlives the call, and so does `raw`.
        context.call("cuModuleLoadData", || unsafe { sys::cuModuleLoadData(&mut raw, image.as_ptr().cast()) })?;
        Ok(Arc::new(Module { context, raw }))
    }

    /// The kernel of this name.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let c_name = CString::new(name)
            .map_err(|_| Error::invalid("entry", format!("{name:?} holds a zero"), "name a function"))?;
        let mut raw = ptr::null_mut();
        self.context.call("cuModuleGetFunction", || {
            // SAFETY: the module is loaded, and the name and `raw` outlive the call.
            unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, c_name.as_ptr()) }
        })?;
        Ok(Function { module: self.clone(), raw })
    }
}

impl Function {
    /// Lets launches ask for this much dynamic shared memory, which beyond 48 KiB must be allowed first.
    pub(crate) fn allow_dynamic_shared(&self, bytes: usize) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is of a loaded module.
        self.module
            .context
            .call("cuFuncSetAttribute", || unsafe { sys::cuFuncSetAttribute(self.raw, attribute, value) })
    }

    /// How many blocks a multiprocessor can hold at a time.
    pub(crate) fn blocks_per_multiprocessor(&self, threads: usize, dynamic_shared_bytes: usize) -> Result<usize> {
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        self.module.context.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", || {
            // SAFETY: the function is of a loaded module, and `blocks` outlives the call.
            unsafe {
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.raw, threads, dynamic_shared_bytes)
            }
        })?;
        Ok(usize::try_from(blocks).unwrap_or(0))
    }

    /// Lets launches ask for clusters of up to 16 blocks. Up to 8 every device that has clusters allows, beyond them not
    /// every device does: [`Function::clusters_at_a_time`] tells.
    pub(crate) fn allow_large_clusters(&self) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function is of a loaded module.
        self.module.context.call("cuFuncSetAttribute", || unsafe { sys::cuFuncSetAttribute(self.raw, attribute, 1) })
    }

    /// How many clusters of so many blocks the device can hold at a time.
    pub(crate) fn clusters_at_a_time(&self, grid: Grid) -> Result<usize> {
        let mut attributes = [cluster_attribute(grid.cluster)];
        let config = config(grid, ptr::null_mut(), &mut attributes);
        let mut clusters = 0;
        self.module.context.call("cuOccupancyMaxActiveClusters", || {
            // SAFETY: the function is of a loaded module; the attributes and `clusters` outlive the call.
            unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.raw, &config) }
        })?;
        Ok(usize::try_from(clusters).unwrap_or(0))
    }

    /// Puts a launch with one argument, passed by value, into the stream.
    ///
    /// # Safety
    /// The kernel must take one parameter of this size and alignment, and what its pointers point at must be there
    /// until the launch is done.
    pub(crate) unsafe fn launch<T: Copy>(&self, stream: &Stream, grid: Grid, argument: &T) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.launch_with(stream, grid, ptr::from_ref(argument).cast(), None) }
    }

    /// The same with an argument that is known by its address alone. Where `early`, blocks may start before the launch before
    /// is done: the kernel itself waits for it (`griddepcontrol.wait`) before it touches memory that another launch may write
    /// or read.
    ///
    /// # Safety
    /// As for [`Function::launch`], and where `early` the kernel must wait.
    pub(crate) unsafe fn launch_at(
        &self,
        stream: &Stream,
        grid: Grid,
        argument: *const c_void,
        early: bool,
    ) -> Result<()> {
        let early = early.then_some(CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        });
        // SAFETY: the caller's word.
        unsafe { self.launch_with(stream, grid, argument, early) }
    }

    /// The same with nothing but the driver's call: the function's context must be the thread's current one, or the call fails.
    ///
    /// # Safety
    /// As for [`Function::launch`].
    pub(crate) unsafe fn launch_alone(&self, stream: &Stream, grid: Grid, argument: *const c_void) -> Result<()> {
        let mut parameters = [argument.cast_mut()];
        let config = config(grid, stream.raw(), &mut []);
        // SAFETY: function and stream are alive; the argument is copied during the call, by the caller's word as large as the
        // kernel's one parameter.
        let result = unsafe { sys::cuLaunchKernelEx(&config, self.raw, parameters.as_mut_ptr(), ptr::null_mut()) };
        self.module.context.check("cuLaunchKernelEx", result)
    }

    /// # Safety
    /// As for [`Function::launch`], and the kernel must do what the attribute asks of it.
    unsafe fn launch_with(
        &self,
        stream: &Stream,
        grid: Grid,
        argument: *const c_void,
        attribute: Option<CUlaunchAttribute>,
    ) -> Result<()> {
        let context = &self.module.context;
        if !Arc::ptr_eq(context, stream.context()) {
            return Err(Error::invalid(
                "stream",
                format!(
                    "it is of device {}, but the kernel is loaded on device {}",
                    stream.context().ordinal(),
                    context.ordinal()
                ),
                "use one device for all",
            ));
        }
        let mut parameters = [argument.cast_mut()];
        // Devices without clusters do not know the attribute, so that it is not told where there are none.
        let cluster = cluster_attribute(grid.cluster);
        let mut attributes = [attribute.unwrap_or(cluster), cluster];
        let told = usize::from(attribute.is_some()) + usize::from(grid.cluster > 1);
        let config = config(grid, stream.raw(), &mut attributes[..told]);
        context.call("cuLaunchKernelEx", || {
            // SAFETY: function, stream and attributes are alive; the argument is copied during the call, by the
            // caller's word as large as the kernel's one parameter.
            unsafe { sys::cuLaunchKernelEx(&config, self.raw, parameters.as_mut_ptr(), ptr::null_mut()) }
        })
    }
}

/// The attributes must live as long as it is used.
fn config(grid: Grid, stream: CUstream, attributes: &mut [CUlaunchAttribute]) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: grid.blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: u32::try_from(grid.dynamic_shared_bytes).unwrap_or(u32::MAX),
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

fn cluster_attribute(blocks: u32) -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: CUlaunchAttributeValue {
            clusterDim: CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 },
        },
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: waiting harms nothing; a kernel of the module may still run.
        self.context.release(|| unsafe { sys::cuCtxSynchronize() });
        // SAFETY: the module was loaded by `load` and is unloaded once.
        self.context.release(|| unsafe { sys::cuModuleUnload(self.raw) });
    }
}
