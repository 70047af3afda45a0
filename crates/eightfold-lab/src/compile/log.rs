//! What the compiler's log says: resources, warnings, errors. NVRTC and nvcc write the same lines.

/// What `ptxas -v` reports of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) registers: u32,
    /// Newer compilers alone report it; that of CUDA 12.4 does not.
    pub(super) barriers: Option<u32>,
    pub(super) static_shared_bytes: usize,
    pub(super) stack_bytes: usize,
    pub(super) spill_store_bytes: usize,
    pub(super) spill_load_bytes: usize,
}

/// The line under `Function properties`.
#[derive(Debug, Clone, Copy)]
struct Properties {
    stack_bytes: usize,
    spill_store_bytes: usize,
    spill_load_bytes: usize,
}

/// The line that begins with `Used`.
#[derive(Debug, Clone, Copy)]
struct Used {
    registers: u32,
    barriers: Option<u32>,
    shared_bytes: usize,
    cumulative_stack_bytes: Option<usize>,
}

/// Reads the report of a kernel, or says which fact the log lacks: a missing number must not pass for zero.
pub(super) fn report(log: &str, entry: &str) -> Result<Report, String> {
    let mut entries = Vec::new();
    let mut used = None;
    let mut functions: Vec<(&str, Properties)> = Vec::new();
    let mut function = None;
    for line in log.lines() {
        if let Some(rest) = after(line, "Compiling entry function '") {
            entries.push(rest.split('\'').next().unwrap_or(rest));
        } else if let Some(name) = after(line, "Function properties for ") {
            function = Some(name.trim());
        } else if line.contains(" bytes stack frame") {
            let properties = properties(line).ok_or_else(|| unreadable(line))?;
            if let Some(name) = function.take() {
                functions.push((name, properties));
            }
        } else if let Some(rest) = after(line, ": Used ")
            && entries.last() == Some(&entry)
        {
            used = Some(parse_used(rest).ok_or_else(|| unreadable(line))?);
        }
    }
    if !entries.contains(&entry) {
        return Err(format!("the log does not mention a kernel `{entry}`"));
    }
    let used = used.ok_or_else(|| format!("the log does not say how many registers `{entry}` uses"))?;
    let own = functions.iter().find(|(name, _)| *name == entry).map(|(_, properties)| *properties);
    let own = own.ok_or_else(|| format!("the log does not say what `{entry}` spills"))?;
    // A function that was not inlined reports its spills under its own name; they are the kernel's all the same.
    let called = functions.iter().filter(|(name, _)| !entries.contains(name)).map(|(_, properties)| *properties);
    let (stores, loads) = called.fold((own.spill_store_bytes, own.spill_load_bytes), |(stores, loads), called| {
        (stores + called.spill_store_bytes, loads + called.spill_load_bytes)
    });
    Ok(Report {
        registers: used.registers,
        barriers: used.barriers,
        static_shared_bytes: used.shared_bytes,
        stack_bytes: used.cumulative_stack_bytes.unwrap_or(own.stack_bytes),
        spill_store_bytes: stores,
        spill_load_bytes: loads,
    })
}

/// `0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads`
fn properties(line: &str) -> Option<Properties> {
    Some(Properties {
        stack_bytes: count(line, " bytes stack frame")?,
        spill_store_bytes: count(line, " bytes spill stores")?,
        spill_load_bytes: count(line, " bytes spill loads")?,
    })
}

/// `18 registers, used 1 barriers, 40 bytes cumulative stack size, 4096 bytes smem, 368 bytes cmem[0]`: a part that
/// is not there is zero, but one that is there must be a number.
fn parse_used(rest: &str) -> Option<Used> {
    let optional = |unit: &str| if rest.contains(unit) { count(rest, unit).map(Some) } else { Some(None) };
    Some(Used {
        registers: count(rest, " registers")?.try_into().ok()?,
        barriers: optional(" barriers")?.map(u32::try_from).transpose().ok()?,
        shared_bytes: optional(" bytes smem")?.unwrap_or(0),
        cumulative_stack_bytes: optional(" bytes cumulative stack size")?,
    })
}

/// The number before a unit.
fn count(text: &str, unit: &str) -> Option<usize> {
    let before = &text[..text.find(unit)?];
    let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(before, |end| &before[end + 1..]);
    digits.parse().ok()
}

fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.find(mark).map(|start| &line[start + mark.len()..])
}

fn unreadable(line: &str) -> String {
    format!("the log has a line that cannot be read: {:?}", line.trim())
}

/// Every line that warns, once each: the compiler's warnings, and the advisories of the assembler that have a code,
/// such as C7508 (`setmaxnreg` ignored) and C7511 (`wgmma` serialised), which it prints as mere information.
pub(super) fn warnings(log: &str) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    for line in log.lines().map(str::trim) {
        let warns = line.contains(": warning") || line.contains("; warning") || line.starts_with("ptxas warning");
        if (warns || has_code(line)) && !warnings.iter().any(|known| known == line) {
            warnings.push(line.to_owned());
        }
    }
    warnings
}

/// Whether a line of the assembler carries a code such as `(C7511)`.
fn has_code(line: &str) -> bool {
    let Some(rest) = line.starts_with("ptxas").then(|| after(line, "(C")).flatten() else { return false };
    rest.split_once(')').is_some_and(|(code, _)| !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_KERNELS: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_89'
ptxas info    : Function properties for other
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compile time = 1.527 ms
ptxas info    : Compiling entry function 'k' for 'sm_89'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 4096 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 1.139 ms
";

    const SPILLS: &str = "\
ptxas warning : Value of threads per SM for entry k is out of range. .minnctapersm will be ignored
ptxas warning : Registers are spilled to local memory in function 'k', 76 bytes spill stores, 72 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_89'
ptxas info    : Function properties for k
ptxas         .     40 bytes stack frame, 76 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 40 bytes cumulative stack size, 364 bytes cmem[0]
";

    /// CUDA 12.4, whose NVRTC does not report barriers.
    const OLD: &str = "\
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 4096 bytes smem
";

    /// nvcc leaves out the prefix of the second line.
    const NVCC: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_89'
ptxas info    : Function properties for k
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 18 registers, used 2 barriers, 16 bytes cumulative stack size, 49152 bytes smem, 368 bytes cmem[0]
";

    const CALLS: &str = "\
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     160 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 31 registers, used 1 barriers, 192 bytes cumulative stack size, 308 bytes smem
ptxas info    : Function properties for _Z3foof
ptxas         .     32 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
";

    const WGMMA: &str = "\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'k'
ptxas info    : 0 bytes gmem
ptxas info    : Used 30 registers, used 0 barriers
";

    #[test]
    fn each_kernel_has_its_own_numbers() {
        let expected = Report {
            registers: 14,
            barriers: Some(1),
            static_shared_bytes: 4096,
            stack_bytes: 0,
            spill_store_bytes: 0,
            spill_load_bytes: 0,
        };
        assert_eq!(report(TWO_KERNELS, "k").unwrap(), expected);
        let other = report(TWO_KERNELS, "other").unwrap();
        assert_eq!((other.registers, other.barriers, other.static_shared_bytes), (8, Some(0), 0));
        assert_eq!(warnings(TWO_KERNELS), Vec::<String>::new());
    }

    #[test]
    fn spills_and_stack() {
        let report = report(SPILLS, "k").unwrap();
        assert_eq!((report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes), (40, 76, 72));
        assert_eq!(warnings(SPILLS).len(), 2);
        assert!(warnings(SPILLS)[1].contains("76 bytes spill stores"));
    }

    #[test]
    fn older_and_other_compilers() {
        let old = report(OLD, "k").unwrap();
        assert_eq!((old.registers, old.barriers, old.static_shared_bytes), (12, None, 4096));
        let nvcc = report(NVCC, "k").unwrap();
        assert_eq!((nvcc.registers, nvcc.barriers, nvcc.static_shared_bytes), (18, Some(2), 49152));
        assert_eq!((nvcc.stack_bytes, nvcc.spill_store_bytes, nvcc.spill_load_bytes), (16, 8, 4));
    }

    #[test]
    fn spills_of_called_functions_are_the_kernels() {
        let report = report(CALLS, "k").unwrap();
        assert_eq!((report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes), (192, 20, 28));
    }

    #[test]
    fn advisories_with_a_code_are_warnings_once_each() {
        let warnings = warnings(WGMMA);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("(C7508)") && warnings[1].contains("(C7511)"));
    }

    #[test]
    fn a_missing_fact_is_an_error() {
        let lacking = |part: &str| {
            let log: Vec<_> = SPILLS.lines().filter(|line| !line.contains(part)).collect();
            report(&log.join("\n"), "k").unwrap_err()
        };
        assert!(lacking("Used 64").contains("registers"));
        assert!(lacking("stack frame").contains("spills"));
        assert!(lacking("Compiling entry").contains("does not mention"));
        assert!(report("", "k").is_err() && report(SPILLS, "other").is_err());
        for (from, to) in
            [("64 registers", "many registers"), ("76 bytes spill stores, 72", "? bytes spill stores, 72")]
        {
            assert!(report(&SPILLS.replace(from, to), "k").unwrap_err().contains("cannot be read"));
        }
        assert!(report(&TWO_KERNELS.replace("4096 bytes smem", "n/a bytes smem"), "k").is_err());
    }
}
