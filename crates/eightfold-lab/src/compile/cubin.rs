//! What a cubin says of itself: the machine code of a kernel and what it needs.
//!
//! A cubin is an ELF file. The code of kernel `k` is the section `.text.k`; its attributes are records in `.nv.info`,
//! by the index of its symbol; the shared memory that its source declares is the size of `.nv.shared.k`.

use super::log::Report;
use eightfold::cuda::Arch;
use object::LittleEndian;
use object::elf::{FileHeader64, SHT_SYMTAB, STT_FUNC};
use object::read::elf::{FileHeader, SectionHeader, SectionTable};

const ENDIAN: LittleEndian = LittleEndian;
/// A record whose value is a size and that many bytes; in every other format the value is two bytes.
const FORMAT_SIZED: u8 = 4;
const ATTRIBUTE_MIN_STACK_SIZE: u8 = 0x12;
const ATTRIBUTE_REGISTER_COUNT: u8 = 0x2f;

/// What the file says of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inspection {
    pub(super) code_hash: u64,
    pub(super) registers: u32,
    pub(super) static_shared_bytes: usize,
    pub(super) stack_bytes: usize,
}

/// Finds the kernel in the file.
pub(super) fn inspect(image: &[u8], entry: &str, arch: Arch) -> Result<Inspection, String> {
    if image.is_empty() {
        return Err("the cubin is empty: no machine code was asked for, as with a virtual architecture".into());
    }
    let broken = |error: object::read::Error| format!("the cubin is not a sound ELF file: {error}");
    let header = FileHeader64::<LittleEndian>::parse(image).map_err(broken)?;
    let sections = header.sections(ENDIAN, image).map_err(broken)?;
    let section = |name: String| sections.section_by_name(ENDIAN, name.as_bytes()).map(|(_, section)| section);

    let Some(text) = section(format!(".text.{entry}")) else {
        return Err(match kernels(&sections).as_slice() {
            [] => "the cubin holds no machine code".into(),
            names => format!("the cubin has no code for `{entry}`, only for {}", names.join(", ")),
        });
    };
    let code = text.data(ENDIAN, image).map_err(broken)?;
    if code.is_empty() {
        return Err(format!("the cubin's code for `{entry}` is empty"));
    }

    let symbols = sections.symbols(ENDIAN, image, SHT_SYMTAB).map_err(broken)?;
    let named = |symbol: &object::elf::Sym64<LittleEndian>| {
        symbol.st_type() == STT_FUNC && symbols.symbol_name(ENDIAN, symbol) == Ok(entry.as_bytes())
    };
    let index = symbols.enumerate().find(|(_, symbol)| named(symbol)).map(|(index, _)| index.0);
    let index = index.ok_or_else(|| format!("the cubin has no symbol `{entry}`"))?;
    let info = section(".nv.info".into()).ok_or("the cubin has no section .nv.info")?;
    let info = info.data(ENDIAN, image).map_err(broken)?;
    let attribute = |code, what| {
        attribute(info, code, index)?.ok_or_else(|| format!("the cubin does not say {what} `{entry}` needs"))
    };

    // The section may be absent, and that is what having no shared memory looks like.
    let shared = section(format!(".nv.shared.{entry}")).map_or(0, |section| section.sh_size(ENDIAN) as usize);
    Ok(Inspection {
        code_hash: super::hash(code),
        registers: attribute(ATTRIBUTE_REGISTER_COUNT, "how many registers")?,
        static_shared_bytes: shared.saturating_sub(reserved_shared_bytes(arch)),
        stack_bytes: attribute(ATTRIBUTE_MIN_STACK_SIZE, "how much stack")? as usize,
    })
}

/// What `.nv.shared.*` holds beside the source's own variables: from Hopper on, the KiB at the start of every block's
/// shared memory that belongs to the system.
fn reserved_shared_bytes(arch: Arch) -> usize {
    match arch {
        Arch::Sm89 => 0,
        _ => 1024,
    }
}

/// The value that `.nv.info` gives to a symbol. The records are a format, an attribute, and a value, which for the
/// attributes looked for here is the symbol's index and a number.
fn attribute(info: &[u8], wanted: u8, symbol: usize) -> Result<Option<u32>, String> {
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mut rest = info;
    while !rest.is_empty() {
        let [format, attribute, low, high, tail @ ..] = rest else {
            return Err("the cubin's .nv.info is cut off".into());
        };
        let length = if *format == FORMAT_SIZED { usize::from(u16::from_le_bytes([*low, *high])) } else { 0 };
        let value = tail.get(..length).ok_or("the cubin's .nv.info is cut off")?;
        if *format == FORMAT_SIZED && *attribute == wanted && word(value, 0) == Some(symbol as u32) {
            return Ok(word(value, 4));
        }
        rest = &tail[length..];
    }
    Ok(None)
}

/// The kernels that the file has code for.
fn kernels(sections: &SectionTable<'_, FileHeader64<LittleEndian>>) -> Vec<String> {
    let names = sections.iter().filter_map(|section| sections.section_name(ENDIAN, section).ok());
    names
        .filter_map(|name| name.strip_prefix(b".text."))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// Compares what the file says with what the log says: both come from one run of the assembler, so that a difference
/// means that one of them was misread.
pub(super) fn cross_check(inspection: &Inspection, report: &Report) -> Result<(), String> {
    let pairs = [
        ("registers", inspection.registers as usize, report.registers as usize),
        ("bytes of static shared memory", inspection.static_shared_bytes, report.static_shared_bytes),
        ("bytes of stack", inspection.stack_bytes, report.stack_bytes),
    ];
    for (what, cubin, log) in pairs {
        if cubin != log {
            return Err(format!("the log says {log} {what}, the cubin says {cubin}"));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A cubin with one kernel, as far as `inspect` looks.
    pub(crate) struct Fake {
        pub(crate) entry: &'static str,
        pub(crate) code: Vec<u8>,
        pub(crate) registers: u32,
        pub(crate) shared_section_bytes: u64,
        pub(crate) stack_bytes: u32,
    }

    impl Fake {
        pub(crate) fn new() -> Self {
            Fake { entry: "k", code: vec![7; 256], registers: 14, shared_section_bytes: 4096, stack_bytes: 0 }
        }

        pub(crate) fn image(&self) -> Vec<u8> {
            let mut info = vec![3, 0x1b, 0xff, 0];
            for (attribute, value) in [(0x11, 99), (0x2f, self.registers), (0x12, self.stack_bytes)] {
                // Another symbol's record comes first, and must not be taken for the kernel's.
                for (symbol, value) in [(5_u32, 77_u32), (1, value)] {
                    info.extend([4, attribute, 8, 0]);
                    info.extend(symbol.to_le_bytes());
                    info.extend(value.to_le_bytes());
                }
            }
            let strings = format!("\0{}\0", self.entry);
            let mut symbols = vec![0; 24];
            symbols.extend(1_u32.to_le_bytes());
            symbols.extend([0x12, 0x10, 1, 0]);
            symbols.extend([0; 16]);
            // Name, type, contents, size when there are none, link.
            let sections: [(String, u32, &[u8], u64, u32); 6] = [
                (format!(".text.{}", self.entry), 1, &self.code, 0, 0),
                (".nv.info".into(), 0x7000_0000, &info, 0, 0),
                (format!(".nv.shared.{}", self.entry), 8, &[], self.shared_section_bytes, 0),
                (".symtab".into(), 2, &symbols, 0, 5),
                (".strtab".into(), 3, strings.as_bytes(), 0, 0),
                (".shstrtab".into(), 3, &[], 0, 0),
            ];
            let mut names = vec![0];
            let mut offsets = Vec::new();
            for (name, ..) in &sections {
                offsets.push(names.len() as u32);
                names.extend(name.as_bytes());
                names.push(0);
            }
            let mut file = vec![0; 64];
            let mut headers = vec![0; 64];
            for ((name, kind, contents, empty_size, link), offset) in sections.iter().zip(offsets) {
                let contents = if name == ".shstrtab" { names.as_slice() } else { contents };
                let size = if contents.is_empty() { *empty_size } else { contents.len() as u64 };
                let entry_size: u64 = if *kind == 2 { 24 } else { 0 };
                headers.extend(offset.to_le_bytes());
                headers.extend(kind.to_le_bytes());
                headers.extend([0; 16]);
                headers.extend((file.len() as u64).to_le_bytes());
                headers.extend(size.to_le_bytes());
                headers.extend(link.to_le_bytes());
                headers.extend([0; 4]);
                headers.extend(1_u64.to_le_bytes());
                headers.extend(entry_size.to_le_bytes());
                file.extend(contents);
                file.resize(file.len().next_multiple_of(8), 0);
            }
            let start = file.len() as u64;
            file.extend(headers);
            file[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08");
            file[16..20].copy_from_slice(&[2, 0, 190, 0]);
            file[20] = 1;
            file[40..48].copy_from_slice(&start.to_le_bytes());
            file[52..54].copy_from_slice(&64_u16.to_le_bytes());
            for (at, value) in [(58, 64_u16), (60, 7), (62, 6)] {
                file[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
            file
        }
    }

    #[test]
    fn reads_what_the_file_says() {
        let ada = inspect(&Fake::new().image(), "k", Arch::Sm89).unwrap();
        assert_eq!((ada.registers, ada.static_shared_bytes, ada.stack_bytes), (14, 4096, 0));
        let hopper = Fake { shared_section_bytes: 5120, stack_bytes: 40, ..Fake::new() };
        let hopper = inspect(&hopper.image(), "k", Arch::Sm90).unwrap();
        assert_eq!((hopper.static_shared_bytes, hopper.stack_bytes), (4096, 40));
        let none = Fake { shared_section_bytes: 0, ..Fake::new() };
        assert_eq!(inspect(&none.image(), "k", Arch::Sm90).unwrap().static_shared_bytes, 0);
    }

    #[test]
    fn the_hash_is_of_the_code_alone() {
        let hash = |fake: Fake| inspect(&fake.image(), "k", Arch::Sm89).unwrap().code_hash;
        let plain = hash(Fake::new());
        assert_eq!(plain, hash(Fake { registers: 20, shared_section_bytes: 0, ..Fake::new() }));
        let mut code = vec![7; 256];
        code[255] = 8;
        assert_ne!(plain, hash(Fake { code, ..Fake::new() }));
    }

    #[test]
    fn code_that_is_not_there_is_said_to_be_missing() {
        let error = |image: &[u8]| inspect(image, "k", Arch::Sm89).unwrap_err();
        assert!(error(&[]).contains("virtual architecture"));
        assert!(error(b"not an ELF file").contains("not a sound ELF file"));
        assert!(error(&Fake { entry: "_Z1kPf", ..Fake::new() }.image()).contains("only for _Z1kPf"));
        assert!(error(&Fake { code: vec![], ..Fake::new() }.image()).contains("is empty"));
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_a_panic() {
        let image = Fake::new().image();
        for length in 0..image.len() {
            assert!(inspect(&image[..length], "k", Arch::Sm89).is_err(), "{length} of {} bytes", image.len());
        }
        for at in 0..image.len() {
            let mut damaged = image.clone();
            damaged[at] ^= 0xff;
            let _ = inspect(&damaged, "k", Arch::Sm89);
        }
    }

    #[test]
    fn a_disagreement_names_both_sides() {
        let inspection = inspect(&Fake::new().image(), "k", Arch::Sm89).unwrap();
        let report = Report {
            registers: 14,
            barriers: None,
            static_shared_bytes: 4096,
            stack_bytes: 0,
            spill_store_bytes: 0,
            spill_load_bytes: 0,
        };
        assert_eq!(cross_check(&inspection, &report), Ok(()));
        let error = cross_check(&inspection, &Report { registers: 16, ..report.clone() }).unwrap_err();
        assert_eq!(error, "the log says 16 registers, the cubin says 14");
        assert!(cross_check(&inspection, &Report { static_shared_bytes: 0, ..report.clone() }).is_err());
        assert!(cross_check(&inspection, &Report { stack_bytes: 8, ..report }).is_err());
    }
}
