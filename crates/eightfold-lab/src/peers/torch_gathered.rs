//! PyTorch's attention in bf16 on the GPU, on keys and values that lie one behind the other, as one who has no kernel for pages
//! gathers them.

use super::torch::Torch;
use eightfold::Result;
use half::bf16;
use serde_json::{Value, json};
use std::io::{BufWriter, Write};

/// What PyTorch has for sequences of these lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatheredPeer {
    /// scaled_dot_product_attention with the fastest of its backends: one call where sequences are alike, else one for each.
    Sdpa,
    /// torch.nn.attention.varlen, one call for sequences of different lengths.
    Varlen,
}

impl GatheredPeer {
    /// Those who have something for these keys and queries of each sequence.
    pub fn all(keys: &[usize], queries: &[usize]) -> Vec<GatheredPeer> {
        let alike = |counts: &[usize]| counts.windows(2).all(|pair| pair[0] == pair[1]);
        match alike(keys) && alike(queries) {
            true => vec![GatheredPeer::Sdpa],
            false => vec![GatheredPeer::Sdpa, GatheredPeer::Varlen],
        }
    }

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            GatheredPeer::Sdpa => "torch-sdpa-bf16-contiguous",
            GatheredPeer::Varlen => "torch-varlen-bf16-contiguous",
        }
    }

    /// What the process calls it.
    fn word(self) -> &'static str {
        match self {
            GatheredPeer::Sdpa => "sdpa",
            GatheredPeer::Varlen => "varlen",
        }
    }
}

/// Causal attention, aligned to the last key of each sequence, of packed queries to packed keys.
pub struct Gathered<'a> {
    /// Of queries, and of keys and values.
    pub heads: [usize; 2],
    /// Channels of a head.
    pub head_dim: usize,
    /// Queries of each sequence.
    pub queries: Vec<usize>,
    /// Keys of each sequence.
    pub keys: Vec<usize>,
    /// `[row, head, channel]`, one sequence behind the other.
    pub q: &'a [bf16],
    /// E4M3 codes, the same of tokens.
    pub k: &'a [u8],
    /// The values' codes.
    pub v: &'a [u8],
    /// By what codes are multiplied.
    pub scale: f32,
    /// By what scores are multiplied.
    pub softmax_scale: f32,
}

impl Torch {
    /// Puts the inputs onto the GPU, dequantised to bf16, in so many copies of K and V and in place of those before.
    pub fn load_gathered(&mut self, gathered: &Gathered, copies: usize) -> Result<()> {
        let file = self.scratch().join("gathered");
        let write = || -> std::io::Result<()> {
            let mut out = BufWriter::new(std::fs::File::create(&file)?);
            for value in gathered.q {
                out.write_all(&value.to_f32().to_ne_bytes())?;
            }
            out.write_all(gathered.k)?;
            out.write_all(gathered.v)?;
            out.flush()
        };
        write().map_err(|error| self.error(format!("its inputs cannot be written: {error}")))?;
        let request = json!({
            "command": "load_gathered",
            "file": file,
            "heads": gathered.heads,
            "head_dim": gathered.head_dim,
            "queries": gathered.queries,
            "keys": gathered.keys,
            "code_scale": gathered.scale,
            "scale": gathered.softmax_scale,
            "copies": copies,
        });
        let answer = self.ask(&request);
        // It may be as large as the memory of a GPU.
        let _ = std::fs::remove_file(&file);
        answer.map(|_| ())
    }

    /// Captures graphs of so many launches, of which the fastest backend's stays; returns what runs, in words.
    pub fn prepare_gathered(&mut self, peer: GatheredPeer, launches: usize) -> Result<String> {
        let answer = self.ask(&json!({"command": "prepare_gathered", "way": peer.word(), "launches": launches}))?;
        let what = answer.get("what").and_then(Value::as_str);
        let what = what.ok_or_else(|| self.error("it did not say what runs".into()))?;
        let device = self.cuda().unwrap_or("no GPU");
        Ok(format!("PyTorch {} {what}, {device}, bf16 on K and V gathered beforehand", self.version()))
    }

    /// Nanoseconds of a launch, of as many replays.
    pub fn time_gathered(&mut self, peer: GatheredPeer, iterations: usize) -> Result<Vec<u64>> {
        let request = json!({"command": "time_gathered", "way": peer.word(), "iterations": iterations});
        self.ask_times(&request, iterations)
    }

    /// Rows of so many channels of the last launch's output, by where they begin in `[row, head, channel]`.
    pub fn rows_of_gathered(&mut self, peer: GatheredPeer, places: &[usize], width: usize) -> Result<Vec<f32>> {
        let request = json!({"way": peer.word(), "places": places, "width": width});
        self.read_output("rows_gathered", request, places.len() * width)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::scripted;
    use super::*;

    fn gathered<'a>(q: &'a [bf16], codes: &'a [u8], keys: &[usize]) -> Gathered<'a> {
        Gathered {
            heads: [2, 1],
            head_dim: 8,
            queries: vec![1; keys.len()],
            keys: keys.to_vec(),
            q,
            k: codes,
            v: codes,
            scale: 0.02,
            softmax_scale: 0.3,
        }
    }

    #[test]
    fn one_call_serves_sequences_that_are_alike_and_others_have_a_peer_more() {
        assert_eq!(GatheredPeer::all(&[8, 8], &[1, 1]), [GatheredPeer::Sdpa]);
        assert_eq!(GatheredPeer::all(&[8, 9], &[1, 1]), [GatheredPeer::Sdpa, GatheredPeer::Varlen]);
        assert_eq!(GatheredPeer::all(&[8, 8], &[1, 2]), [GatheredPeer::Sdpa, GatheredPeer::Varlen]);
    }

    #[test]
    fn the_fastest_backend_is_captured_timed_and_read_row_by_row() {
        let Some(mut torch) = scripted("") else { return };
        let q: Vec<bf16> = (0..32).map(|index| bf16::from_f32(index as f32)).collect();
        torch.load_gathered(&gathered(&q, &[0x38; 2 * 5 * 8], &[5, 5]), 3).unwrap();
        assert!(!torch.scratch().join("gathered").exists());
        let what = torch.prepare_gathered(GatheredPeer::Sdpa, 6).unwrap();
        let expected =
            "PyTorch 0.0-fake scaled_dot_product_attention, FLASH_ATTENTION backend, one call, Fake GPU, bf16 on K";
        assert!(what.starts_with(expected), "{what}");
        assert_eq!(torch.time_gathered(GatheredPeer::Sdpa, 4).unwrap(), [3000; 4]);
        // The stand-in gives back Q.
        let rows = torch.rows_of_gathered(GatheredPeer::Sdpa, &[8, 0], 8).unwrap();
        assert_eq!(rows[..8], [8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
        assert_eq!((rows[8], rows.len()), (0.0, 16));
        // Poisoned, and written by no replay.
        torch.time_gathered(GatheredPeer::Sdpa, 0).unwrap();
        let told = torch.rows_of_gathered(GatheredPeer::Sdpa, &[0], 8).unwrap_err().to_string();
        assert!(told.contains("values that are not finite"), "{told}");
    }

    #[test]
    fn what_is_not_there_is_told_and_the_others_go_on() {
        let Some(mut torch) = scripted("") else { return };
        let q = [bf16::ONE; 32];
        torch.load_gathered(&gathered(&q, &[0x38; 9 * 8], &[5, 4]), 1).unwrap();
        let told = torch.prepare_gathered(GatheredPeer::Varlen, 2).unwrap_err().to_string();
        assert!(told.contains("not found: this Python has no torch.nn.attention.varlen"), "{told}");
        assert!(torch.prepare_gathered(GatheredPeer::Sdpa, 2).unwrap().contains("2 calls"));
        assert_eq!(torch.time_gathered(GatheredPeer::Sdpa, 2).unwrap(), [6000; 2]);
    }
}
