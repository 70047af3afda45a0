use eightfold::*;
use std::time::Instant;
fn rng(seed: &mut u64) -> f32 {
    let mut u = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..12).map(|_| u()).sum::<f32>() - 6.0
}
fn main() {
    let mut seed = 88172645463325252u64;
    let args: Vec<String> = std::env::args().collect();
    let shapes = if args.len() > 1 {
        vec![args[1].clone()]
    } else {
        ["1,8,32,64", "1,8,512,64", "2,8,512,64", "2,8,2048,64"].map(String::from).to_vec()
    };
    let variants: Vec<Variant> = if args.len() > 2 {
        args[2..].iter().map(|s| s.parse().unwrap()).collect()
    } else {
        [
            "cpu:lanes",
            "cpu:poly-exp",
            "cpu:avx2",
            "cpu:avx512",
            "cpu:int16-avx2",
            "cpu:int16-avx512",
            "cpu:numbers=i16,simd=portable",
        ]
        .map(|s| s.parse().unwrap())
        .to_vec()
    };
    for shape in shapes {
        for causal in [false, true] {
            let shape: Shape = shape.parse().unwrap();
            let mut problem = Problem::new(shape).unwrap().with_lse(true);
            if causal {
                problem = problem.causal();
            }
            let mut gen_ = |d: Dims| (0..d.count()).map(|_| rng(&mut seed)).collect::<Vec<f32>>();
            let (qf, kf, vf) = (gen_(shape.query_dims()), gen_(shape.key_dims()), gen_(shape.key_dims()));
            let q = quantize(&qf, shape.query_dims()).unwrap();
            let k = quantize(&kf, shape.key_dims()).unwrap();
            let v = quantize(&vf, shape.key_dims()).unwrap();
            let r = reference::attention(&problem, &q.dequantize(), &k.dequantize(), &v.dequantize()).unwrap();
            for variant in &variants {
                let plan = Plan::with_variant(&problem, *variant).unwrap();
                let mut out = Output::zeros(&problem);
                out.poison();
                let rep = plan.run(&q, &k, &v, &mut out).unwrap();
                let o = out.values.to_f32();
                let (mut e, mut n) = (0.0, 0.0);
                for (a, b) in o.iter().zip(&r.values) {
                    e += (*a as f64 - b).powi(2);
                    n += b * b;
                }
                let le = out
                    .lse
                    .as_ref()
                    .unwrap()
                    .iter()
                    .zip(&r.lse)
                    .map(|(a, b)| (*a as f64 - b).abs())
                    .fold(0.0, f64::max);
                let mut t = vec![];
                let start = Instant::now();
                while t.len() < 5 || (start.elapsed().as_secs_f64() < 0.5 && t.len() < 40000) {
                    let a = Instant::now();
                    plan.run(&q, &k, &v, &mut out).unwrap();
                    t.push(a.elapsed().as_secs_f64() * 1e6);
                }
                t.sort_by(f64::total_cmp);
                println!(
                    "{problem} {:40} p50 {:9.1} min {:9.1} us  rel {:.2e} lse {:.1e} {:?}",
                    variant.to_string().replace("schedule=queue,", ""),
                    t[t.len() / 2],
                    t[0],
                    (e / n as f64).sqrt(),
                    le,
                    rep
                );
            }
        }
    }
}
