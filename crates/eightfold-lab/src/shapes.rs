//! The shapes that are measured, by name.

use eightfold::lab::suggest;
use eightfold::{Error, Problem, Result, Shape};

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
    Shape::new(batch, heads, len, head_dim)
}

static REGISTRY: &[Registered] = &[
    Registered { name: "small", shape: self_attention(1, 8, 32, 64), what: "one tile per head: overheads show" },
    Registered { name: "mission", shape: self_attention(1, 8, 512, 64), what: "the size the kernels are built for" },
    Registered { name: "mission_b2", shape: self_attention(2, 8, 512, 64), what: "the same, two sequences" },
    Registered { name: "long", shape: self_attention(2, 8, 2048, 64), what: "long enough that memory shows" },
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

/// The same as a problem, of which a list may say `D/Dv` where V has other channels than Q and K; with what a person calls it.
pub fn problem(text: &str) -> Result<(String, Problem)> {
    let Some((sizes, value_dim)) = text.split_once('/') else {
        let NamedShape { name, shape } = parse(text)?;
        return Ok((name, Problem::new(shape)?));
    };
    let value_dim = value_dim.trim().parse().map_err(|_| {
        let fix = "write the channels of V behind those of Q and K, for example 1,8,512,192/128";
        Error::invalid("shape", format!("`{text}` does not end in a whole number"), fix)
    })?;
    let problem = Problem::new(parse(sizes)?.shape)?.with_value_dim(value_dim)?;
    Ok((problem.to_string(), problem))
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
    fn channels_of_v_come_behind_a_slash() {
        let (name, wide) = problem(" 1,8,512,192/128").unwrap();
        assert_eq!((name.as_str(), wide.value_dims().head_dim), ("1,8,512,192/128", 128));
        let (name, mission) = problem("mission").unwrap();
        assert_eq!((name.as_str(), mission), ("mission", Problem::new(parse("mission").unwrap().shape).unwrap()));
        let error = |text| problem(text).unwrap_err().to_string();
        assert!(error("1,8,512,192/12").starts_with("value_dim: 12 is not"), "{}", error("1,8,512,192/12"));
        assert!(
            error("1,8,512,192/x").starts_with("shape: `1,8,512,192/x` does not end"),
            "{}",
            error("1,8,512,192/x")
        );
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
