//! What is timed: heads, and the lengths of sequences.

use eightfold::{Error, OutputFormat, Problem, Result, Shape};
use std::fmt;
use std::str::FromStr;

/// From as many queries of each sequence on tensor cores of Hopper compute.
const MANY_QUERIES: usize = 17;

/// Tokens of prompts.
const PROMPTS: [usize; 8] = [300, 700, 1200, 1800, 2300, 2700, 3384, 4000];

/// The shortest and the longest of ragged sequences.
const RAGGED: (usize, usize) = (200, 32768);

/// What is timed unless cases are named: models' heads on one device, short and long, one sequence and many.
pub const CASES: &[&str] = &[
    "32,8,128,1,1024",
    "32,8,128,1,8192",
    "32,8,128,1,32768",
    "32,8,128,8,8192",
    "32,8,128,32,8192",
    "32,8,128,128,8192",
    "8,1,128,1,8192",
    "8,1,128,1,32768",
    "8,1,128,1,131072",
    "8,1,128,32,8192",
    "8,1,128,128,8192",
    "32,8,128,64,ragged",
    "8,1,128,64,ragged",
    "32,8,128,8,8192,4",
    "32,8,128,32,8192,4",
    "64,8,64,1,8192",
    "64,8,64,32,8192",
    "32,8,128,8,prompts",
    "32,8,128,1,16384,2048",
    "8,8,128,1,append",
    "8,8,128,128,append",
    "8,8,128,2048,append",
    "8,8,128,16384,append",
];

/// How many keys sequences have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Each(usize),
    /// Few and many.
    Ragged,
    /// As many as queries.
    Prompts,
    /// One, new: tokens are appended, and none attended to.
    Append,
}

/// Heads and lengths: `query heads,kv heads,head dim,sequences,keys[,queries]`, where keys may be `ragged`, or `prompts`, whose
/// queries are as many, or `append`, where the sequences are new tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub(super) query_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) sequences: usize,
    pub(super) keys: Keys,
    pub(super) queries: usize,
}

impl FromStr for Case {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fix = "give query heads,kv heads,head dim,sequences,keys[,queries], such as 32,8,128,8,8192; keys may be ragged or prompts";
        let wrong = |rule: String| Error::invalid("case", rule, fix);
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if !(5..=6).contains(&parts.len()) {
            return Err(wrong(format!("`{text}` has {} parts, not 5 or 6", parts.len())));
        }
        let number = |part: &str| match part.parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(wrong(format!("`{part}` in `{text}` is no positive number"))),
        };
        let case = Case {
            query_heads: number(parts[0])?,
            kv_heads: number(parts[1])?,
            head_dim: number(parts[2])?,
            sequences: number(parts[3])?,
            keys: match parts[4] {
                "ragged" => Keys::Ragged,
                "prompts" => Keys::Prompts,
                "append" => Keys::Append,
                keys => Keys::Each(number(keys)?),
            },
            queries: parts.get(5).map_or(Ok(1), |part| number(part))?,
        };
        case.problem()?;
        Ok(case)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { query_heads, kv_heads, head_dim, sequences, keys, queries } = self;
        write!(f, "{query_heads},{kv_heads},{head_dim},{sequences},")?;
        match keys {
            Keys::Each(keys) => write!(f, "{keys}")?,
            Keys::Ragged => f.write_str("ragged")?,
            Keys::Prompts => f.write_str("prompts")?,
            Keys::Append => f.write_str("append")?,
        }
        if *queries > 1 { write!(f, ",{queries}") } else { Ok(()) }
    }
}

impl Case {
    /// Keys of every sequence; ragged ones grow by as many percent from each to the next.
    pub(super) fn lengths(&self) -> Vec<usize> {
        let ragged = |index: usize| {
            let (shortest, longest) = (RAGGED.0 as f64, RAGGED.1 as f64);
            let share = index as f64 / (self.sequences.max(2) - 1) as f64;
            (shortest * (longest / shortest).powf(share)).round() as usize
        };
        // Short and long ones side by side, as they come.
        let order = |index: usize| if index.is_multiple_of(2) { index / 2 } else { self.sequences - 1 - index / 2 };
        match self.keys {
            Keys::Each(keys) => vec![keys; self.sequences],
            Keys::Ragged => (0..self.sequences).map(|index| ragged(order(index))).collect(),
            Keys::Append => vec![1; self.sequences],
            Keys::Prompts => (0..self.sequences).map(|index| PROMPTS[index % PROMPTS.len()]).collect(),
        }
    }

    /// Where each sequence's queries begin, and behind the last where they end.
    pub(super) fn query_starts(&self) -> Vec<usize> {
        let mut starts = vec![0];
        for keys in self.lengths() {
            let queries = if self.keys == Keys::Prompts { keys } else { self.queries };
            starts.push(starts[starts.len() - 1] + queries);
        }
        starts
    }

    /// Whether tensor cores of Hopper compute.
    pub(super) fn is_for_tiles(&self) -> bool {
        self.keys == Keys::Prompts || self.queries >= MANY_QUERIES
    }

    pub(super) fn problem(&self) -> Result<Problem> {
        let lengths = self.lengths();
        let longest = lengths.iter().copied().max().unwrap_or(1);
        let queries = if self.keys == Keys::Prompts { longest } else { self.queries };
        let shape = Shape::new(self.sequences, self.query_heads, queries, self.head_dim)
            .with_kv_heads(self.kv_heads)
            .with_key_len(longest);
        Ok(Problem::new(shape)?.causal().with_output_format(OutputFormat::Bf16))
    }

    /// The least that must be read: the codes of all keys and values; of new tokens what is read and written, in bf16 and in FP8
    /// with a scale for each token and head.
    pub(super) fn bytes(&self) -> usize {
        if self.keys == Keys::Append {
            return 2 * self.sequences * self.kv_heads * (3 * self.head_dim + 4);
        }
        2 * self.kv_heads * self.head_dim * self.lengths().iter().sum::<usize>()
    }

    /// In words.
    pub fn title(&self) -> String {
        let Case { query_heads, kv_heads, head_dim, sequences, keys, queries } = self;
        let s = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        let heads = format!("{query_heads}/{kv_heads} heads of {head_dim}, {}", s(*sequences, "sequence", "sequences"));
        let queries = s(*queries, "query", "queries");
        match keys {
            Keys::Each(keys) => format!("{heads} of {keys} keys, {queries} each"),
            Keys::Ragged => format!("{heads} of {} to {} keys, {queries} each", RAGGED.0, RAGGED.1),
            Keys::Append => {
                let tokens = s(*sequences, "token", "tokens");
                format!("{tokens} appended, {kv_heads} heads of {head_dim}")
            }
            Keys::Prompts => format!("{heads} of {} to {} tokens", PROMPTS[0], PROMPTS[PROMPTS.len() - 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_what_they_say() {
        for text in CASES {
            let case: Case = text.parse().unwrap();
            assert_eq!(case.to_string(), *text);
            assert_eq!(case.lengths().len(), case.sequences);
        }
        let case: Case = "32, 8,128,8,8192,4".parse().unwrap();
        assert_eq!(case.bytes(), 2 * 8 * 128 * 8 * 8192);
        assert_eq!(case.title(), "32/8 heads of 128, 8 sequences of 8192 keys, 4 queries each");
        let prompts: Case = "32,8,128,8,prompts".parse().unwrap();
        assert_eq!((prompts.query_starts()[8], prompts.problem().unwrap().shape().query_len), (16384, 4000));
        assert_eq!(prompts.title(), "32/8 heads of 128, 8 sequences of 300 to 4000 tokens");
        let ragged: Case = "8,1,128,64,ragged".parse().unwrap();
        let mut lengths = ragged.lengths();
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!((lengths[0], lengths[lengths.len() - 1]), RAGGED);
        assert!(lengths.len() > 60, "{lengths:?}");
    }

    #[test]
    fn what_is_no_case_is_refused_by_name() {
        for text in ["", "32,8,128,1", "32,8,128,1,0", "32,8,128,1,1e3", "32,7,128,1,64", "32,8,128,1,64,1,1"] {
            let error = text.parse::<Case>().unwrap_err().to_string();
            assert!(error.contains(": "), "{text}: {error}");
        }
    }
}
