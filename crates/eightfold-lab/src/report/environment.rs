//! Where a record comes from, so that it can be judged and repeated.

use crate::numbers;
use crate::record::Record;
use maud::{Markup, html};

/// Code, machine, compiler, time and command.
pub fn render(record: &Record) -> Markup {
    let provenance = &record.provenance;
    let machine = &provenance.machine;
    let mut facts: Vec<(&str, String)> = vec![("time", provenance.time_utc.to_string())];
    facts.push(("command", provenance.command.join(" ")));
    let commit = provenance.built_from.clone().unwrap_or_else(|| "unknown".into());
    facts.push(("version", format!("{}, built from commit {commit}", provenance.eightfold)));
    facts.extend(provenance.checkout.as_ref().map(|checkout| {
        let dirty = if checkout.dirty { ", with changes that were not committed" } else { ", unchanged" };
        ("checkout", format!("{}{dirty}", checkout.commit))
    }));
    let build = if provenance.release { "release build" } else { "not a release build: times say little" };
    facts.push(("compiler", format!("{}, {build}", provenance.rustc.as_deref().unwrap_or("unknown"))));
    facts.extend(provenance.nvrtc.clone().map(|nvrtc| ("kernel compiler", nvrtc)));
    facts.extend(provenance.gpu.as_ref().map(|gpu| {
        let sizes = [numbers::memory(gpu.memory_bytes), numbers::memory(gpu.l2_bytes)];
        let clock = numbers::three_digits(gpu.clock_khz as f64 / 1e6);
        let [memory, l2] = sizes;
        let text = format!(
            "{} ({}), {} multiprocessors, {memory} of memory, {l2} of L2, up to {clock} GHz",
            gpu.name, gpu.arch, gpu.multiprocessors
        );
        ("GPU", text)
    }));
    facts.extend(provenance.gpu.as_ref().map(|gpu| ("driver", gpu.driver.clone())));
    facts.push(("CPU", format!("{}, {} ({})", machine.cpu, machine.arch, machine.features.join(", "))));
    let cores = numbers::counted(machine.cores, "core", "cores");
    facts.push(("threads", format!("{} of {cores}", provenance.threads)));
    facts.push(("system", machine.os.clone()));
    facts.push(("record format", record.schema.to_string()));
    html! {
        dl { @for (name, value) in facts { dt { (name) } dd { (value) } } }
    }
}
