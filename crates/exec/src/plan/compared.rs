//! Comparisons in `$expr` that an index can help with: of a field with a value that is known when the plan is made.
//!
//! They only narrow what is scanned: the `$expr` stays in the filter. Unlike a filter's own operators they compare across types, and arrays
//! as wholes.

use sheaf_bson::{OwnedValue, RawDoc, Value};
use sheaf_expr::{Deps, Env, Expr, View};
use sheaf_query::matcher::{CompareOp, MatchExpr};

use super::analyze::conjuncts;

/// One comparison.
#[derive(Debug)]
pub struct Comparison {
    /// Number of the top-level conjunct that it is, or that it is a part of.
    pub conjunct: usize,
    /// The field.
    pub path: String,
    /// Which comparison: of the field with the operand.
    pub op: CompareOp,
    /// The value to compare with.
    pub operand: OwnedValue,
}

/// The comparisons of a condition. With `env` its variables are known, too.
pub fn of<'a>(condition: &'a MatchExpr, env: Option<&Env<'a>>) -> Vec<Comparison> {
    let mut out = Vec::new();
    for (at, conjunct) in conjuncts(condition).iter().enumerate() {
        if let MatchExpr::Expr(expr) = conjunct {
            collect(expr, at, env, &mut out);
        }
    }
    out
}

fn collect<'a>(expr: &'a Expr, conjunct: usize, env: Option<&Env<'a>>, out: &mut Vec<Comparison>) {
    let (name, args) = match expr.view() {
        View::Operator("$and", args) => {
            return args.iter().for_each(|arg| collect(arg, conjunct, env, out));
        }
        View::Operator(name, [left, right]) => (name, (left, right)),
        _ => return,
    };
    let Some(op) = operator(name) else { return };
    let (path, op, operand) = match args {
        (field, operand) if field.as_path().is_some() => (field, op, operand),
        (operand, field) => (field, turned(op), operand),
    };
    let Some(path) = path.as_path().map(|path| path.dotted()) else { return };
    if let Some(operand) = value(operand, env) {
        out.push(Comparison { conjunct, path, op, operand });
    }
}

fn operator(name: &str) -> Option<CompareOp> {
    use CompareOp::{Eq, Gt, Gte, Lt, Lte};
    [Eq, Gt, Gte, Lt, Lte].into_iter().find(|op| op.name() == name)
}

/// The comparison with its sides exchanged.
fn turned(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq => CompareOp::Eq,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Gte => CompareOp::Lte,
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Lte => CompareOp::Gte,
    }
}

/// The value, if it is known without a document.
fn value<'a>(expr: &'a Expr, env: Option<&Env<'a>>) -> Option<OwnedValue> {
    if let Some(constant) = expr.constant() {
        return Some(OwnedValue::from(constant));
    }
    if !matches!(expr.view(), View::Variable(..)) && !is_cheap(expr) {
        return None;
    }
    let mut deps = Deps::new();
    expr.dependencies(&mut deps);
    let known = deps.paths.is_empty() && !deps.whole_document && deps.metadata.is_empty() && !deps.random;
    // What fails here fails when a document is looked at, and only then.
    let value = expr.eval(RawDoc::EMPTY, env.filter(|_| known)?).ok()?;
    (!matches!(value, Value::Missing)).then(|| OwnedValue::from(value))
}

/// Whether nothing in an expression is a client's program.
fn is_cheap(expr: &Expr) -> bool {
    match expr.view() {
        View::Operator("$function", _) => false,
        View::Operator(_, args) | View::Array(args) => args.iter().all(is_cheap),
        View::Object(fields) => fields.iter().all(|(_, value)| is_cheap(value)),
        View::Constant(_) | View::Path(_) | View::Variable(..) | View::Now => true,
    }
}
