//! The shapes that are measured, by name.

use eightfold::{Problem, Result, Shape, suggest};

/// A shape and what a person calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedShape {
    /// Its name in the registry, or the list of its sizes.
    pub name: String,
    /// The sizes.
    pub shape: Shape,
}

/// A shape of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// What a person calls it.
    pub name: &'static str,
    /// The sizes.
    pub shape: Shape,
    /// What it is good for.
    pub what: &'static str,
}

const fn self_attention(batch: usize, heads: usize, len: usize, head_dim: usize) -> Shape {
    Shape { batch, query_heads: heads, kv_heads: heads, query_len: len, key_len: len, head_dim }
}

static REGISTRY: &[Registered] = &[
    Registered {
        name: "small",
        shape: self_attention(1, 8, 32, 64),
        what: "one tile per head: overheads show",
    },
    Registered {
        name: "mission",
        shape: self_attention(1, 8, 512, 64),
        what: "the size the kernels are built for",
    },
    Registered {
        name: "mission_b2",
        shape: self_attention(2, 8, 512, 64),
        what: "the same, two sequences",
    },
    Registered {
        name: "long",
        shape: self_attention(2, 8, 2048, 64),
        what: "long enough that memory shows",
    },
];

/// Every shape with a name, smallest first.
pub fn registry() -> &'static [Registered] {
    REGISTRY
}

/// A registry name, or a list `B,H,S,D` or `B,Hq,Hkv,Sq,Skv,D` that makes a sound problem.
pub fn parse(text: &str) -> Result<NamedShape> {
    let text = text.trim();
    if let Some(known) = registry().iter().find(|known| known.name == text) {
        return Ok(NamedShape { name: known.name.into(), shape: known.shape });
    }
    if !text.contains(',') {
        let names: Vec<_> = registry().iter().map(|known| known.name).collect();
        return Err(suggest::unknown("shape", text, &names));
    }
    let shape: Shape = text.parse()?;
    Problem::new(shape)?;
    Ok(NamedShape { name: shape.to_string(), shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_name_parses_to_its_shape() {
        for known in registry() {
            assert_eq!(parse(known.name).unwrap().shape, known.shape);
            assert!(Problem::new(known.shape).is_ok());
        }
    }

    #[test]
    fn a_list_is_its_own_name() {
        assert_eq!(parse("1,8,512,64").unwrap().name, "1,8,512,64");
        let grouped = parse(" 2,8,2,17,33,128 ").unwrap();
        assert_eq!((grouped.shape.kv_heads, grouped.shape.key_len), (2, 33));
    }

    #[test]
    fn mistakes_are_answered_with_the_fix() {
        let error = |text| parse(text).unwrap_err().to_string();
        assert!(error("misson").contains("did you mean `mission`?"), "{}", error("misson"));
        assert!(error("1,8,512").contains("B,H,S,D"), "{}", error("1,8,512"));
        assert!(error("1,8,512,65").starts_with("head_dim: "), "{}", error("1,8,512,65"));
        assert!(error("1,0,512,64").starts_with("query_heads: "), "{}", error("1,0,512,64"));
        assert!(error("1,8,3,512,512,64").contains("kv_heads"), "{}", error("1,8,3,512,512,64"));
    }
}
