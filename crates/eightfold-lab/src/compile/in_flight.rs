//! Accumulators that are touched while a product is under way, by the machine code of a kernel.
//!
//! A `wgmma` returns at once, and its accumulator is the tensor cores' until a wait. To the compiler the value is there as soon as
//! the instruction is issued: it may copy the accumulator before the wait, and then the copy lacks what was under way. Sources
//! are written so that it has no reason to; this says whether it did.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of a thread's registers, of which there are 255.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Registers([u64; 4]);

impl Registers {
    fn add(&mut self, range: Range<u32>) {
        range.for_each(|register| self.0[register as usize / 64 % 4] |= 1 << (register % 64));
    }

    fn with(self, other: Registers) -> Registers {
        Registers(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    fn meets(self, other: Registers) -> bool {
        self.0.iter().zip(other.0).any(|(own, other)| own & other != 0)
    }
}

impl From<Range<u32>> for Registers {
    fn from(range: Range<u32>) -> Self {
        let mut registers = Registers::default();
        registers.add(range);
        registers
    }
}

/// Groups of products that may be under way: those not yet closed, then closed ones from the newest on, each with its registers.
#[derive(Clone, Default, PartialEq, Eq)]
struct UnderWay {
    open: Registers,
    closed: Vec<Registers>,
}

/// More groups than any kernel has under way at a time.
const MOST_GROUPS: usize = 8;

impl UnderWay {
    fn registers(&self) -> Registers {
        self.closed.iter().fold(self.open, |all, group| all.with(*group))
    }

    /// What may be under way where two ways meet.
    fn with(&self, other: &UnderWay) -> UnderWay {
        let group = |state: &UnderWay, index: usize| state.closed.get(index).copied().unwrap_or_default();
        let count = self.closed.len().max(other.closed.len());
        let closed = (0..count).map(|index| group(self, index).with(group(other, index))).collect();
        UnderWay { open: self.open.with(other.open), closed }
    }

    fn after(&self, instruction: &Instruction) -> UnderWay {
        let mut next = self.clone();
        match &instruction.kind {
            Kind::Product { accumulator, closes, .. } => {
                next.open = next.open.with(*accumulator);
                if *closes {
                    next.closed.insert(0, std::mem::take(&mut next.open));
                    next.closed.truncate(MOST_GROUPS);
                }
            }
            Kind::Wait { pending } => next.closed.truncate(*pending),
            _ => {}
        }
        next
    }
}

struct Instruction {
    text: String,
    kind: Kind,
    /// Where it may go on.
    next: Vec<usize>,
}

enum Kind {
    Product { accumulator: Registers, operand: Registers, closes: bool },
    Wait { pending: usize },
    Other { registers: Registers },
}

/// Every instruction that touches an accumulator between its product and the wait for it, as the disassembler writes it; an error
/// is a text that is not understood.
pub fn early_touches(disassembly: &str) -> Result<Vec<String>, String> {
    let instructions = parse(disassembly)?;
    let mut states: Vec<Option<UnderWay>> = vec![None; instructions.len()];
    let mut work = Vec::new();
    if let Some(first) = states.first_mut() {
        *first = Some(UnderWay::default());
        work.push(0);
    }
    while let Some(index) = work.pop() {
        let Some(state) = &states[index] else { continue };
        let after = state.after(&instructions[index]);
        for &next in &instructions[index].next {
            let merged = states[next].as_ref().map_or_else(|| after.clone(), |known| known.with(&after));
            if states[next].as_ref() != Some(&merged) {
                states[next] = Some(merged);
                work.push(next);
            }
        }
    }
    let mut touches = Vec::new();
    for (instruction, state) in instructions.iter().zip(&states) {
        match (state, &instruction.kind) {
            (None, Kind::Product { .. }) => return Err(format!("no way leads to `{}`", instruction.text)),
            (Some(state), Kind::Product { operand: touched, .. } | Kind::Other { registers: touched })
                if state.registers().meets(*touched) =>
            {
                touches.push(instruction.text.clone());
            }
            _ => {}
        }
    }
    Ok(touches)
}

/// Lines such as `/*0060*/ @P0 BRA `(.L_x_0) ;` and `.L_x_0:`.
fn parse(disassembly: &str) -> Result<Vec<Instruction>, String> {
    let mut lines: Vec<&str> = Vec::new();
    let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
    for line in disassembly.lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L")) {
            labels.insert(label, lines.len());
        } else if let Some((_, text)) = line.strip_prefix("/*").and_then(|rest| rest.split_once("*/"))
            && let Some(text) = text.trim().strip_suffix(';')
        {
            lines.push(text.trim());
        }
    }
    let count = lines.len();
    let one = |(index, text): (usize, &&str)| instruction(text, index, count, &labels);
    lines.iter().enumerate().map(one).collect()
}

fn instruction(text: &str, index: usize, count: usize, labels: &BTreeMap<&str, usize>) -> Result<Instruction, String> {
    let odd = || format!("`{text}` is not understood");
    let has_condition = text.starts_with('@');
    let unconditional = if has_condition { text.split_once(' ').map_or("", |(_, rest)| rest.trim()) } else { text };
    let (operation, operands) = unconditional.split_once(' ').unwrap_or((unconditional, ""));
    let name = operation.split('.').next().unwrap_or_default();
    let kind = match name {
        "HGMMA" | "QGMMA" | "IGMMA" | "BGMMA" => product(operation, operands).ok_or_else(odd)?,
        "WARPGROUP" if operation.starts_with("WARPGROUP.DEPBAR") => {
            let pending = operands.rsplit("0x").next().and_then(|number| usize::from_str_radix(number.trim(), 16).ok());
            Kind::Wait { pending: pending.ok_or_else(odd)? }
        }
        _ => Kind::Other { registers: registers(operation, operands) },
    };
    let target = operands.split_once("`(").and_then(|(_, rest)| rest.split_once(')')).map(|(label, _)| label);
    let behind = (index + 1 < count).then_some(index + 1);
    let next: Vec<usize> = match name {
        "BRA" | "CALL" | "WARPSYNC" if target.is_some() => {
            let label = target.unwrap_or_default();
            let there = *labels.get(label).ok_or_else(odd)?;
            // A plain branch is always taken; one with a condition, before or among the operands, may not be.
            let always = operation == "BRA" && !has_condition && operands.starts_with("`(");
            [Some(there), behind.filter(|_| !always)].into_iter().flatten().collect()
        }
        "EXIT" | "RET" | "KILL" => behind.filter(|_| has_condition).into_iter().collect(),
        "BRX" | "JMX" | "JMP" | "BRXU" => return Err(odd()),
        _ => behind.into_iter().collect(),
    };
    // The padding behind the last instruction branches to itself.
    Ok(Instruction { text: text.to_string(), kind, next: next.into_iter().filter(|next| *next < count).collect() })
}

/// `QGMMA.64x136x32.F32.E4M3.E4M3`, `R24, R92, gdesc[UR16], R24, !UP0, gsb0`: 64 rows of 128 threads, so that a thread has half
/// as many sums as there are columns, of f16 two to a register.
fn product(operation: &str, operands: &str) -> Option<Kind> {
    const A_REGISTERS: u32 = 4;
    let mut parts = operation.split('.').skip(1);
    let columns: u32 = parts.next()?.split('x').nth(1)?.parse().ok()?;
    let count = if parts.next()? == "F16" { columns / 4 } else { columns / 2 };
    let mut operands = operands.split(',').map(str::trim);
    let register = |operand: &str| operand.strip_prefix('R')?.split('.').next()?.parse::<u32>().ok();
    let first = register(operands.next()?)?;
    let operand = operands.next().and_then(register).map_or(0..0, |first| first..first + A_REGISTERS);
    let closes = operands.any(|operand| operand == "gsb0");
    Some(Kind::Product { accumulator: (first..first + count).into(), operand: operand.into(), closes })
}

/// The registers that an instruction reads or writes. Wide operands are taken to be wide all of them, but for addresses.
fn registers(operation: &str, operands: &str) -> Registers {
    let modifier = |wanted: &str| operation.split('.').any(|part| part == wanted);
    let width = match () {
        () if modifier("128") => 4,
        () if modifier("64") || modifier("WIDE") => 2,
        () => 1,
    };
    // Two numbers of 32 bits make a wide product.
    let is_factor = |index: usize| modifier("WIDE") && (index == 1 || index == 2);
    let is_predicate = |operand: &&str| operand.trim_start_matches([' ', '!', 'U']).starts_with('P');
    let mut found = Registers::default();
    for (index, operand) in operands.split(',').filter(|operand| !is_predicate(operand)).enumerate() {
        let mut in_address = false;
        let mut before = ' ';
        let mut rest = operand;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '[' => in_address = true,
                ']' => in_address = false,
                'R' if !before.is_ascii_alphanumeric() => {
                    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                    if let Ok(first) = rest[..digits].parse::<u32>() {
                        let count = match () {
                            () if rest[digits..].starts_with(".64") => 2,
                            () if in_address || is_factor(index) => 1,
                            () => width,
                        };
                        found.add(first..first + count);
                    }
                }
                _ => {}
            }
            before = c;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches(lines: &[&str]) -> Result<Vec<String>, String> {
        let text: Vec<String> = lines
            .iter()
            .map(|line| if line.ends_with(':') { (*line).into() } else { format!("        /*0000*/    {line} ;") })
            .collect();
        early_touches(&text.join("\n"))
    }

    const START: &str = "QGMMA.64x16x32.F32.E4M3.E4M3 R24, R92, gdesc[UR16], R24, !UP0, gsb0";
    const WAIT: &str = "WARPGROUP.DEPBAR.LE gsb0, 0x0";

    #[test]
    fn an_accumulator_is_free_behind_the_wait_and_not_before() {
        assert_eq!(touches(&[START, WAIT, "FADD R1, R1, R24", "EXIT"]), Ok(vec![]));
        assert_eq!(touches(&[START, "FADD R1, R1, R32", WAIT, "EXIT"]), Ok(vec![]), "eight registers, up to R31");
        for early in ["MOV R1, R31", "FADD R24, R1, R2", "STG.E.128 desc[UR4][R2.64], R28", "STS.64 [R23], R30"] {
            assert_eq!(touches(&[START, early, WAIT, "EXIT"]), Ok(vec![early.to_string()]));
        }
        assert_eq!(touches(&[START, "STS.128 [R21], R4", WAIT, "EXIT"]), Ok(vec![]), "an address is one register");
        for factor in ["IMAD.WIDE R2, R23, 0x4, R2", "IMAD.WIDE.U32 R2, P0, R4, R23, R2"] {
            assert_eq!(touches(&[START, factor, WAIT, "EXIT"]), Ok(vec![]), "and so is a factor");
        }
        assert_eq!(
            touches(&[START, "IMAD.WIDE R2, R4, R5, R23", WAIT, "EXIT"]).unwrap().len(),
            1,
            "what is added is two"
        );
    }

    #[test]
    fn halves_take_half_the_registers() {
        let start = "QGMMA.64x16x32.F16.E4M3.E4M3 R24, gdesc[UR4], RZ, !UPT, gsb0";
        assert_eq!(touches(&[start, "MOV R1, R28", WAIT, "EXIT"]), Ok(vec![]));
        assert_eq!(touches(&[start, "MOV R1, R27", WAIT, "EXIT"]).unwrap().len(), 1);
    }

    #[test]
    fn a_wait_leaves_the_newest_groups_under_way() {
        let other = "QGMMA.64x16x32.F32.E4M3.E4M3 R64, R92, gdesc[UR16], R64, gsb0";
        let one_left = "WARPGROUP.DEPBAR.LE gsb0, 0x1";
        assert_eq!(touches(&[START, other, one_left, "MOV R1, R24", "EXIT"]), Ok(vec![]));
        assert_eq!(touches(&[START, other, one_left, "MOV R1, R64", "EXIT"]).unwrap().len(), 1);
        // A product that closes no group belongs to the next one that does.
        let open = "QGMMA.64x16x32.F32.E4M3.E4M3 R24, R92, gdesc[UR16], R24";
        assert_eq!(touches(&[open, other, one_left, "MOV R1, R24", "EXIT"]).unwrap().len(), 1);
    }

    #[test]
    fn products_may_follow_each_other_on_one_accumulator() {
        assert_eq!(touches(&[START, START, WAIT, "EXIT"]), Ok(vec![]));
        let from_sums = "QGMMA.64x16x32.F32.E4M3.E4M3 R64, R28, gdesc[UR16], R64, gsb0";
        assert_eq!(touches(&[START, from_sums, WAIT, "EXIT"]), Ok(vec![from_sums.to_string()]));
    }

    #[test]
    fn ways_around_the_wait_are_followed() {
        let skipped = [START, "@P0 BRA `(.L_x_1)", WAIT, ".L_x_1:", "MOV R1, R24", "EXIT"];
        assert_eq!(touches(&skipped), Ok(vec!["MOV R1, R24".to_string()]));
        let in_loop = [".L_x_1:", "MOV R1, R24", START, "@P0 BRA `(.L_x_1)", WAIT, "EXIT"];
        assert_eq!(touches(&in_loop), Ok(vec!["MOV R1, R24".to_string()]));
        let apart = [START, WAIT, "BRA `(.L_x_1)", "MOV R1, R24", ".L_x_1:", "EXIT"];
        assert_eq!(touches(&apart), Ok(vec![]));
    }

    #[test]
    fn what_is_not_understood_is_an_error_and_no_pass() {
        for line in ["QGMMA.64xNx32.F32 R24, R92", "WARPGROUP.DEPBAR.LE gsb0, R1", "BRX R4 -0x10", "BRA `(.L_x_9)"] {
            assert!(touches(&[line, "EXIT"]).unwrap_err().contains(line), "{line}");
        }
        assert!(touches(&["EXIT", START]).unwrap_err().starts_with("no way leads to"));
    }
}
