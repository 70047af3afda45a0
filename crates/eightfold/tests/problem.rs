//! What a problem may be, and what it says of itself.

use eightfold::{Accuracy, Fp8Format, Layout, MAX_HEAD_DIM, Mask, OutputFormat, Problem, Result, Shape, Window};
use proptest::prelude::*;

const SHAPE: Shape = Shape::new(2, 6, 5, 16).with_kv_heads(3).with_key_len(7);

fn with(change: impl FnOnce(&mut Shape)) -> Shape {
    let mut shape = SHAPE;
    change(&mut shape);
    shape
}

#[track_caller]
fn assert_refused(result: Result<Problem>, expected: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn the_defaults_are_the_usual_ones() {
    let problem = Problem::new(SHAPE).unwrap();
    assert_eq!(problem.shape(), SHAPE);
    assert_eq!(problem.mask(), Mask::None);
    assert_eq!((problem.window(), problem.softcap(), problem.has_sinks()), (Window::default(), None, false));
    assert_eq!((problem.value_dims(), problem.output_dims()), (SHAPE.key_dims(), SHAPE.query_dims()));
    assert_eq!(problem.softmax_scale(), 0.25);
    assert_eq!(problem.input_format(), Fp8Format::E4m3);
    assert_eq!(problem.output_format(), OutputFormat::F32);
    assert_eq!(problem.output_layout(), Layout::Bhsd);
    assert!(!problem.lse());
    assert_eq!(problem.accuracy().to_string(), "fast");
}

#[test]
fn every_setting_is_kept() {
    let problem = Problem::new(SHAPE)
        .unwrap()
        .causal()
        .with_softmax_scale(0.7)
        .unwrap()
        .with_input_format(Fp8Format::E5m2)
        .with_output_format(OutputFormat::Bf16)
        .with_output_layout(Layout::Bshd)
        .unwrap()
        .with_lse(true)
        .with_accuracy(Accuracy::Precise);
    assert_eq!(problem.mask(), Mask::Causal);
    assert_eq!(problem.accuracy(), Accuracy::Precise);
    assert_eq!(problem.softmax_scale(), 0.7);
    assert_eq!(problem.input_format(), Fp8Format::E5m2);
    assert_eq!(problem.output_format(), OutputFormat::Bf16);
    assert_eq!(problem.output_layout(), Layout::Bshd);
    assert!(problem.lse());
    assert_eq!(problem.with_mask(Mask::None).with_lse(false).to_string(), SHAPE.to_string());
}

#[test]
fn a_problem_says_what_it_is() {
    let problem = Problem::new(SHAPE).unwrap();
    let text = |problem: Problem| problem.to_string();
    assert_eq!(text(problem.causal()), "2,6,3,5,7,16 causal");
    let problem = problem.with_window(Window::new(Some(3), None)).with_value_dim(8).unwrap();
    assert_eq!(text(problem), "2,6,3,5,7,16/8 window=3,-1");
    let problem = problem.causal().with_softcap(30.0).unwrap().with_sinks();
    assert_eq!(text(problem), "2,6,3,5,7,16/8 causal window=3,-1 softcap=30 sinks");
    assert_eq!((problem.softcap(), problem.has_sinks()), (Some(30.0), true));
    assert_eq!((problem.value_dims().head_dim, problem.output_dims().head_dim), (8, 8));
    assert_eq!(problem.with_window(Window::default()).to_string(), "2,6,3,5,7,16/8 causal softcap=30 sinks");
}

#[test]
fn a_window_reads_back_what_it_prints() {
    for window in [Window::new(Some(0), Some(7)), Window::new(None, Some(0)), Window::default()] {
        assert_eq!(window.to_string().parse(), Ok(window));
    }
    assert_eq!(" 128, -1".parse(), Ok(Window::new(Some(128), None)));
    for text in ["", "128", "128,", "-2,0", "1,2,3", "x,0", "1.5,0"] {
        let error = text.parse::<Window>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("window: `{text}` is not the numbers of keys")), "{error}");
    }
}

#[test]
fn a_softcap_must_be_finite_and_positive() {
    let problem = Problem::new(SHAPE).unwrap();
    for softcap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_refused(
            problem.with_softcap(softcap),
            &format!("softcap: must be finite and positive, got {softcap}; leave it out"),
        );
    }
}

#[test]
fn the_channels_of_v_follow_the_rules_of_q_and_k() {
    let problem = Problem::new(SHAPE).unwrap();
    for (value_dim, rule) in [
        (0, "must be at least 1, got 0; "),
        (12, "12 is not a multiple of 8 up to 256; pad each head with zeros to 16"),
        (260, "260 is not a multiple of 8 up to 256; split the head"),
    ] {
        assert_refused(problem.with_value_dim(value_dim), &format!("value_dim: {rule}"));
    }
    let most = usize::MAX / 64 / 8;
    let narrow = Problem::new(Shape::new(1, 1, most, 8)).unwrap();
    assert_refused(narrow.with_value_dim(256), "shape: [1, 1, ");
}

#[test]
fn a_zero_size_is_refused_by_name() {
    let shapes = [
        ("batch", SHAPE.with_batch(0)),
        ("query_heads", with(|shape| shape.query_heads = 0)),
        ("kv_heads", SHAPE.with_kv_heads(0)),
        ("query_len", SHAPE.with_query_len(0)),
        ("key_len", SHAPE.with_key_len(0)),
        ("head_dim", with(|shape| shape.head_dim = 0)),
    ];
    for (name, shape) in shapes {
        assert_refused(Problem::new(shape), &format!("{name}: must be at least 1, got 0"));
    }
}

#[test]
fn query_heads_must_be_a_multiple_of_key_heads() {
    assert_refused(
        Problem::new(with(|shape| shape.query_heads = 7)),
        "query_heads: 7 is not a multiple of kv_heads 3; ",
    );
    assert_refused(
        Problem::new(with(|shape| shape.query_heads = 1)),
        "query_heads: 1 is not a multiple of kv_heads 3; ",
    );
    assert!(Problem::new(SHAPE.with_kv_heads(1)).is_ok());
    assert!(Problem::new(SHAPE.with_kv_heads(6)).is_ok());
}

#[test]
fn head_dim_must_be_a_multiple_of_eight_up_to_the_widest() {
    for head_dim in 1..=2 * MAX_HEAD_DIM {
        let result = Problem::new(with(|shape| shape.head_dim = head_dim));
        if head_dim % 8 == 0 && head_dim <= MAX_HEAD_DIM {
            assert!(result.is_ok(), "{head_dim}");
        } else {
            let fix = match head_dim < MAX_HEAD_DIM {
                true => format!("to {} and keep", head_dim.next_multiple_of(8)),
                false => "the widest supported is 256".into(),
            };
            let error = result.unwrap_err().to_string();
            let rule = format!("head_dim: {head_dim} is not a multiple of 8 up to 256; ");
            assert!(error.starts_with(&rule) && error.contains(&fix), "{error}");
        }
    }
}

#[test]
fn a_size_beyond_the_address_space_is_refused() {
    let huge = usize::MAX / 8;
    for shape in [
        SHAPE.with_batch(huge),
        SHAPE.with_query_len(huge),
        SHAPE.with_key_len(huge),
        SHAPE.with_key_len(usize::MAX / 32 / 16).with_batch(1).with_kv_heads(3),
    ] {
        assert_refused(Problem::new(shape), "shape: [");
    }
    let widest = Shape::new(1, 1, 1, usize::MAX);
    assert_refused(Problem::new(widest), &format!("head_dim: {} is not a multiple of 8", usize::MAX));
}

#[test]
fn the_softmax_scale_must_be_finite_and_positive() {
    let problem = Problem::new(SHAPE).unwrap();
    for scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_refused(
            problem.with_softmax_scale(scale),
            &format!("softmax_scale: must be finite and positive, got {scale}; "),
        );
    }
    assert!(problem.with_softmax_scale(f32::MIN_POSITIVE).is_ok());
}

#[test]
fn the_output_is_never_transposed() {
    let problem = Problem::new(SHAPE).unwrap();
    assert_refused(problem.with_output_layout(Layout::Bhds), "output_layout: ");
}

#[test]
fn a_shape_reads_as_four_or_six_sizes() {
    assert_eq!("1,8,512,64".parse(), Ok(Shape::new(1, 8, 512, 64)));
    assert_eq!(" 2, 6,3,5 ,7,16 ".parse(), Ok(SHAPE));
    for text in ["", "1", "1,2,3", "1,2,3,4,5", "1,2,3,4,5,6,7", "1,8,-2,64", "1,8,x,64", "1,8,512,64,"] {
        let error = text.parse::<Shape>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("shape: `{text}` is not a list of 4 or 6")), "{error}");
    }
}

#[test]
fn under_the_causal_mask_the_last_query_sees_every_key() {
    let seen = |query_len, key_len| -> Vec<usize> {
        let shape = SHAPE.with_query_len(query_len).with_key_len(key_len);
        let problem = Problem::new(shape).unwrap().causal();
        (0..query_len).map(|query| problem.visible(query).len()).collect()
    };
    assert_eq!(seen(4, 4), [1, 2, 3, 4]);
    assert_eq!(seen(3, 5), [3, 4, 5]);
    assert_eq!(seen(5, 3), [0, 0, 1, 2, 3]);
    assert_eq!(seen(1, 9), [9]);
    assert_eq!(seen(3, 1), [0, 0, 1]);
    let unmasked = Problem::new(SHAPE).unwrap();
    assert!((0..5).all(|query| unmasked.visible(query) == (0..7)));
}

#[test]
fn flop_counts_what_is_not_masked() {
    let problem = Problem::new(Shape::new(2, 3, 4, 8)).unwrap();
    assert_eq!(problem.flop(), (4 * 2 * 3 * 4 * 4 * 8) as f64);
    assert_eq!(problem.causal().flop(), (4 * 2 * 3 * (1 + 2 + 3 + 4) * 8) as f64);
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1usize..5, 1usize..5, 1usize..5, 1usize..40, 1usize..40, 1usize..5).prop_map(
        |(batch, kv_heads, group, query_len, key_len, eighths)| {
            Shape::new(batch, kv_heads * group, query_len, 8 * eighths).with_kv_heads(kv_heads).with_key_len(key_len)
        },
    )
}

proptest! {
    #[test]
    fn a_shape_survives_being_printed_and_parsed(shape in shapes()) {
        prop_assert_eq!(shape.to_string().parse(), Ok(shape));
    }

    #[test]
    fn visible_keys_are_those_that_mask_and_window_allow(
        shape in shapes(),
        causal: bool,
        left in proptest::option::of(prop_oneof![0usize..45, Just(usize::MAX)]),
        right in proptest::option::of(prop_oneof![0usize..45, Just(usize::MAX)]),
    ) {
        let problem = Problem::new(shape)?.with_mask(Mask::causal_if(causal)).with_window(Window::new(left, right));
        let mut pairs = 0;
        for query in 0..shape.query_len {
            // The last query is aligned with the last key.
            let sees = |key: &usize| {
                let (key, own) = (key + shape.query_len, query + shape.key_len);
                (!causal || key <= own)
                    && left.is_none_or(|left| own.saturating_sub(key) <= left)
                    && right.is_none_or(|right| key.saturating_sub(own) <= right)
            };
            let allowed: Vec<usize> = (0..shape.key_len).filter(sees).collect();
            prop_assert_eq!(problem.visible(query).collect::<Vec<_>>(), &allowed[..]);
            pairs += allowed.len();
        }
        let lines = shape.batch * shape.query_heads * shape.head_dim;
        prop_assert_eq!(problem.flop(), (4 * pairs * lines) as f64);
        let wider = problem.with_value_dim(shape.head_dim + 8)?;
        prop_assert_eq!(wider.flop(), (pairs * shape.batch * shape.query_heads * (4 * shape.head_dim + 16)) as f64);
    }
}
