//! The space that is searched: every legal setting of a kernel's knobs, and no other.

use super::cascade::suits;
use eightfold::lab::{Family, Knob, suggest};
use eightfold::{Error, Problem, Result, Variant};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use rayon::prelude::*;
use std::collections::HashMap;

/// One setting: for each knob of the family the place of its value in the knob's list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point(pub Vec<u8>);

impl Point {
    /// In how many knobs two settings differ.
    pub fn distance(&self, other: &Point) -> usize {
        self.0.iter().zip(&other.0).filter(|(one, other)| one != other).count()
    }
}

/// A family's knobs with the values that may be tried, and the points that break no rule.
#[derive(Debug, Clone)]
pub struct Space {
    family: &'static Family,
    points: Vec<Point>,
    places: HashMap<Point, usize>,
    /// Settings that the knobs' lists allow, before any rule.
    settings: usize,
}

impl Space {
    /// Every setting within the restriction that this machine can run the problem with, as exact as the baseline.
    pub fn of_problem(
        family: &'static Family,
        restriction: &Restriction,
        problem: &Problem,
        baseline: &Variant,
    ) -> Result<Space> {
        Space::of_problems(family, restriction, &[(*problem, *baseline)])
    }

    /// The same for several problems, each with its baseline.
    pub fn of_problems(
        family: &'static Family,
        restriction: &Restriction,
        problems: &[(Problem, Variant)],
    ) -> Result<Space> {
        Space::new(family, restriction, &|variant| {
            problems.iter().try_for_each(|(problem, baseline)| suits(problem, baseline, variant))
        })
    }

    /// Every setting within the restriction that the rules of the family and this rule allow.
    pub fn new(
        family: &'static Family,
        restriction: &Restriction,
        rule: &(dyn Fn(&Variant) -> Result<()> + Sync),
    ) -> Result<Space> {
        let values: Vec<Vec<u8>> = family.knobs.iter().map(|knob| restriction.places(knob)).collect();
        let settings = values.iter().map(Vec::len).product::<usize>();
        let judge = |mut number: usize| {
            let place = |values: &Vec<u8>| {
                let place = values[number % values.len()];
                number /= values.len();
                place
            };
            let point = Point(values.iter().map(place).collect());
            variant(family, &point).and_then(|variant| rule(&variant)).map(|()| point)
        };
        let points: Vec<Point> = (0..settings).into_par_iter().filter_map(|number| judge(number).ok()).collect();
        if points.is_empty() {
            let first = (settings > 0).then(|| judge(0).err()).flatten();
            let reason = first.map_or_else(|| "no value is left".into(), |error| error.to_string());
            return Err(Error::invalid(
                "restrict",
                format!("of {settings} settings none is legal here, the first because {reason}"),
                "restrict fewer knobs, or allow more values",
            ));
        }
        Ok(Space { settings, ..Space::of_points(family, points) })
    }

    /// These points and no others: a space that was recorded.
    pub fn of_points(family: &'static Family, mut points: Vec<Point>) -> Space {
        points.sort();
        points.dedup();
        let places = points.iter().enumerate().map(|(place, point)| (point.clone(), place)).collect();
        Space { family, settings: points.len(), points, places }
    }

    /// The points within a restriction.
    pub fn restricted(&self, restriction: &Restriction) -> Result<Space> {
        let allowed: Vec<Vec<u8>> = self.family.knobs.iter().map(|knob| restriction.places(knob)).collect();
        let within = |point: &&Point| point.0.iter().zip(&allowed).all(|(place, allowed)| allowed.contains(place));
        let points: Vec<Point> = self.points.iter().filter(within).cloned().collect();
        if points.is_empty() {
            let rule = format!("of {} points none is within it", self.points.len());
            return Err(Error::invalid("restrict", rule, "restrict fewer knobs, or allow more values"));
        }
        Ok(Space::of_points(self.family, points))
    }

    /// The kernel family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Every point, in a fixed order.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Settings that the knobs' lists allow, before any rule.
    pub fn settings(&self) -> usize {
        self.settings
    }

    /// Whether a point may be evaluated.
    pub fn contains(&self, point: &Point) -> bool {
        self.places.contains_key(point)
    }

    /// A point, each as likely as the others.
    pub fn sample(&self, generator: &mut ChaCha8Rng) -> &Point {
        &self.points[below(generator, self.points.len())]
    }

    /// The kernel with its knobs set.
    pub fn variant(&self, point: &Point) -> Result<Variant> {
        variant(self.family, point)
    }

    /// The value of a knob at a point.
    pub fn value(&self, point: &Point, knob: usize) -> &'static str {
        self.family.knobs[knob].values[point.0[knob] as usize]
    }

    /// Where a knob is in the family's list.
    pub fn knob(&self, name: &str) -> Option<usize> {
        self.family.knobs.iter().position(|knob| knob.name == name)
    }

    /// The point of a variant; none if one of its values is not among those worth trying.
    pub fn point(&self, variant: &Variant) -> Option<Point> {
        point(self.family, variant)
    }
}

/// The point of a variant of this family; none if one of its values is not among those worth trying.
pub fn point(family: &Family, variant: &Variant) -> Option<Point> {
    if variant.kernel() != family.name {
        return None;
    }
    let place = |knob: &Knob| {
        let value = variant.knob(knob.name)?;
        knob.values.iter().position(|listed| *listed == value).map(|place| place as u8)
    };
    family.knobs.iter().map(place).collect::<Option<Vec<u8>>>().map(Point)
}

fn variant(family: &Family, point: &Point) -> Result<Variant> {
    let knobs = family.knobs.iter().zip(&point.0);
    let text: Vec<_> = knobs.map(|(knob, place)| format!("{}={}", knob.name, knob.values[*place as usize])).collect();
    format!("{}:{}", family.name, text.join(",")).parse()
}

/// A number below this one.
pub(super) fn below(generator: &mut ChaCha8Rng, count: usize) -> usize {
    (generator.next_u64() % count as u64) as usize
}

/// Which values of which knobs are tried: `knob=value,…`, where a knob may be named several times; the others keep all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restriction {
    allowed: Vec<(&'static str, &'static str)>,
}

impl Restriction {
    /// Reads what a person wrote; a knob or a value that the family does not have is an error.
    pub fn parse(family: &'static Family, text: &str) -> Result<Restriction> {
        let mut allowed = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((name, value)) = part.split_once('=') else {
                let rule = format!("`{part}` is not knob=value");
                return Err(Error::invalid("restrict", rule, "write for example --restrict exp=poly,tile_keys=64"));
            };
            let knob = family.knob(name.trim())?;
            let listed = knob.values.iter().find(|listed| **listed == value.trim());
            let listed = listed.ok_or_else(|| suggest::unknown(knob.name, value.trim(), knob.values))?;
            allowed.push((knob.name, *listed));
        }
        Ok(Restriction { allowed })
    }

    fn places(&self, knob: &Knob) -> Vec<u8> {
        let named = self.allowed.iter().any(|(name, _)| *name == knob.name);
        let tried = |value: &str| !named || self.allowed.contains(&(knob.name, value));
        (0..knob.values.len()).filter(|place| tried(knob.values[*place])).map(|place| place as u8).collect()
    }
}

impl std::fmt::Display for Restriction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<_> = self.allowed.iter().map(|(knob, value)| format!("{knob}={value}")).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::Accuracy;
    use eightfold::lab::FAMILIES;
    use rand_chacha::rand_core::SeedableRng;

    fn space(kernel: &str, restriction: &str) -> Result<Space> {
        let family = Family::find(kernel)?;
        Space::new(family, &Restriction::parse(family, restriction)?, &|_| Ok(()))
    }

    #[test]
    fn the_cpu_space_by_hand() {
        let space = space("cpu", "").unwrap();
        // Plain loops have one number path and one exponential; three levels have two of each; three schedules, 16 tiles.
        let without_tiles = (1 + 3 * 4) * 3 * 16;
        // Tiles have two number paths and one exponential, and take no 16 rows alone.
        let in_tiles = 2 * 3 * 12;
        assert_eq!((space.settings(), space.points().len()), (4 * 5 * 2 * 3 * 16, without_tiles + in_tiles));
    }

    #[test]
    fn every_point_is_a_legal_variant_and_reads_back() {
        for family in FAMILIES {
            let restricted = match family.name {
                "ladder" => "softmax=fused,copy=async2,banks=swizzled",
                "hopper" => "linear=0,linear=8,stages=2,launch=plain,split_keys=off",
                _ => "",
            };
            let space = space(family.name, restricted).unwrap();
            assert!(space.points().len() > 100 && space.points().len() < space.settings());
            for point in space.points().iter().step_by(7) {
                let variant = space.variant(point).unwrap();
                assert_eq!(space.point(&variant).as_ref(), Some(point));
                assert!(space.contains(point));
            }
        }
        let cpu: Variant = "cpu".parse().unwrap();
        assert_eq!(space("ladder", "softmax=fused,copy=sync").unwrap().point(&cpu), None);
    }

    #[test]
    fn restrictions_keep_what_they_name() {
        let restricted = space("cpu", "simd=avx2, simd=portable,exp=poly").unwrap();
        assert_eq!(restricted.points().len(), 2 * 2 * 3 * 16);
        let exp = restricted.knob("exp").unwrap();
        assert!(restricted.points().iter().all(|point| restricted.value(point, exp) == "poly"));
        let family = Family::find("cpu").unwrap();
        let text = "simd=avx2,exp=poly";
        assert_eq!(Restriction::parse(family, text).unwrap().to_string(), text);
    }

    #[test]
    fn a_space_keeps_to_the_accuracy_of_its_baseline() {
        let family = Family::find("hopper").unwrap();
        let problem = Problem::new("2,8,2048,64".parse().unwrap()).unwrap();
        let space = |restriction: &str, baseline: &str| {
            let restriction = Restriction::parse(family, restriction).unwrap();
            Space::of_problem(family, &restriction, &problem, &baseline.parse().unwrap())
        };
        let few = "warpgroups=2,stages=2,flight=2,launch=plain,split_keys=off";
        for (baseline, accuracy, linear) in [
            ("hopper:fast", Accuracy::Fast, &["4", "5", "6", "7", "8"][..]),
            ("hopper:balanced", Accuracy::Balanced, &["1", "2", "3"]),
            ("hopper:precise", Accuracy::Precise, &["0"]),
        ] {
            let space = space(few, baseline).unwrap();
            let variants = || space.points().iter().map(|point| space.variant(point).unwrap());
            assert!(variants().all(|variant| variant.accuracy() == Some(accuracy)));
            // Sums over all 2048 keys are not left to the tensor cores.
            assert!(variants().all(|variant| variant.knob("promote").as_deref() != Some("0")));
            let tried: std::collections::BTreeSet<_> =
                variants().filter_map(|variant| variant.knob("linear")).collect();
            assert_eq!(tried, linear.iter().map(|value| value.to_string()).collect());
        }
        let error = space(&format!("{few},linear=0,scores=f16,weights=fp8,tile_keys=64,promote=512"), "hopper:fast");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("because accuracy: a search keeps to the accuracy of its baseline"), "{error}");
    }

    #[test]
    fn mistakes_name_the_knob_and_an_empty_space_says_why() {
        let error = |restriction| space("cpu", restriction).unwrap_err().to_string();
        assert!(error("tile=64").starts_with("knob: `tile` is unknown; "), "{}", error("tile=64"));
        assert!(error("exp=pol").starts_with("exp: `pol` is unknown; did you mean `poly`?"), "{}", error("exp=pol"));
        assert!(error("exp").contains("`exp` is not knob=value"));
        let empty = error("simd=scalar,exp=poly");
        assert!(
            empty.starts_with("restrict: of 192 settings none is legal here, the first because simd: scalar"),
            "{empty}"
        );
    }

    #[test]
    fn samples_reach_everything() {
        let space = space("cpu", "simd=portable,schedule=queue,exp=poly").unwrap();
        let generator = &mut ChaCha8Rng::seed_from_u64(1);
        let seen: std::collections::HashSet<_> = (0..600).map(|_| space.sample(generator).clone()).collect();
        assert_eq!(seen.len(), space.points().len());
    }
}
