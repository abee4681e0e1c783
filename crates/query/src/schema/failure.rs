//! Why a document does not satisfy a schema, in the shape of MongoDB's `errInfo.details`.

use sheaf_bson::{ArrayWriter, DocBuf, DocWriter, RawDoc, Value};
use sheaf_expr::size_of_value;

use super::check::{duplicate, failing_property, has_property, is_additional};
use super::encrypt::{self, Plain};
use super::rule::{Allowed, Dependency, Rule, Schema};
use crate::room::Room;

type Writer<'w> = DocWriter<'w, Vec<u8>>;
type List<'w> = ArrayWriter<'w, Vec<u8>>;

/// The details of a failing `$jsonSchema`.
pub(super) fn details(schema: &Schema, doc: RawDoc<'_>, room: &Room) -> DocBuf {
    DocBuf::build(|out| {
        if is_never(schema) {
            put_never(room, schema, out);
            return;
        }
        out.append("operatorName", "$jsonSchema");
        put_annotations(schema, out);
        put_failures(room, schema, Value::Document(doc), &mut out.array("schemaRulesNotSatisfied"));
    })
}

fn put_annotations(schema: &Schema, out: &mut Writer<'_>) {
    put_texts(schema.source(), out);
}

/// What explains a schema, or its `dependencies`, to people.
fn put_texts(source: RawDoc<'_>, out: &mut Writer<'_>) {
    for (annotation, text) in ["title", "description"].map(|name| (name, source.get_or_missing(name))) {
        if text.as_str().is_some() {
            out.append(annotation, text);
        }
    }
}

fn is_never(schema: &Schema) -> bool {
    matches!(schema.rules[..], [Rule::Never])
}

/// What is said of a schema that no document satisfies.
fn put_never(room: &Room, schema: &Schema, out: &mut Writer<'_>) {
    out.append("operatorName", "$jsonSchema");
    if room.wants(schema.source.as_bytes().len()) {
        out.document("specifiedAs").append("$jsonSchema", &schema.source);
    }
    out.append("reason", ALWAYS_FALSE);
}

/// The `details` of a schema below another one.
fn put_details(room: &Room, schema: &Schema, value: Value<'_>, out: &mut Writer<'_>) {
    if is_never(schema) {
        put_never(room, schema, &mut out.document("details"));
    } else {
        put_failures(room, schema, value, &mut out.array("details"));
    }
}

const ALWAYS_FALSE: &str = "expression always evaluates to false";

/// One document for each rule that does not hold.
fn put_failures(room: &Room, schema: &Schema, value: Value<'_>, out: &mut List<'_>) {
    for rule in schema.rules.iter().filter(|rule| rule.fails(value)) {
        let mut doc = out.document();
        doc.append("operatorName", rule.keyword());
        match value {
            Value::Document(inside) if put_document_rule(room, rule, schema, inside, &mut doc) => {}
            Value::Array(array) if put_array_rule(room, rule, schema, array, &mut doc) => {}
            _ => put_rule(room, rule, schema, value, &mut doc),
        }
    }
}

/// `specifiedAs`: the keyword with its operand and what modifies it.
fn put_specified(room: &Room, rule: &Rule, schema: &Schema, out: &mut Writer<'_>) {
    let keyword = rule.keyword();
    let operand = schema.source().get_or_missing(keyword);
    if !room.wants(size_of_value(operand)) {
        return;
    }
    let mut specified = out.document("specifiedAs");
    specified.append(keyword, operand);
    match rule {
        Rule::Maximum { exclusive: true, .. } => _ = specified.append("exclusiveMaximum", true),
        Rule::Minimum { exclusive: true, .. } => _ = specified.append("exclusiveMinimum", true),
        _ => {}
    }
}

/// Rules about single values and combinations of schemas.
fn put_rule(room: &Room, rule: &Rule, schema: &Schema, value: Value<'_>, out: &mut Writer<'_>) {
    match rule {
        Rule::AllOf(schemas) | Rule::AnyOf(schemas) => put_schemas(room, schemas, value, out),
        Rule::OneOf(schemas) => {
            let matching: Vec<i32> =
                (0..).zip(schemas).filter(|(_, schema)| !schema.fails(value)).map(|(at, _)| at).collect();
            if matching.is_empty() {
                put_schemas(room, schemas, value, out);
            } else {
                out.append("reason", "more than one subschema matched");
                let mut indexes = out.array("matchingSchemaIndexes");
                matching.iter().for_each(|at| _ = indexes.push(*at));
            }
        }
        Rule::Not(_) => _ = out.append("reason", "child expression matched"),
        Rule::EmptyEnum => {
            put_specified(room, rule, schema, out);
            out.append("reason", ALWAYS_FALSE);
        }
        Rule::Encrypt(types) => {
            let reason = match encrypt::fault(value, types.as_ref()) {
                Some(Plain::Type) => "encrypted value has wrong type",
                _ => "value was not encrypted",
            };
            out.append("reason", reason);
        }
        rule => {
            put_specified(room, rule, schema, out);
            let reason = match rule {
                Rule::MultipleOf(_) => "considered value is not a multiple of the specified value",
                Rule::MaxLength(_) | Rule::MinLength(_) => "specified string length was not satisfied",
                Rule::Pattern(_) => "regular expression did not match",
                Rule::Enum(_) => "value was not found in enum",
                Rule::Type { .. } => "type did not match",
                _ => "comparison failed",
            };
            out.append("reason", reason);
            if room.wants(size_of_value(value)) {
                out.append("consideredValue", value);
            }
            if matches!(rule, Rule::Type { .. }) {
                out.append("consideredType", value.type_name());
            }
        }
    }
}

fn put_schemas(room: &Room, schemas: &[Schema], value: Value<'_>, out: &mut Writer<'_>) {
    let mut list = out.array("schemasNotSatisfied");
    for (index, schema) in (0i32..).zip(schemas).filter(|(_, schema)| schema.fails(value)) {
        let mut doc = list.document();
        doc.append("index", index);
        put_annotations(schema, &mut doc);
        put_details(room, schema, value, &mut doc);
    }
}

/// Rules about documents; false for others.
fn put_document_rule(
    room: &Room,
    rule: &Rule,
    schema: &Schema,
    doc: RawDoc<'_>,
    out: &mut Writer<'_>,
) -> bool {
    match rule {
        Rule::Properties(properties) => {
            let mut list = out.array("propertiesNotSatisfied");
            for (name, schema) in properties {
                let Some(value) = failing_property(doc, name, schema) else { continue };
                let mut failing = list.document();
                failing.append("propertyName", &**name);
                put_annotations(schema, &mut failing);
                put_details(room, schema, value, &mut failing);
            }
        }
        Rule::PatternProperties(patterns) => {
            let mut list = out.array("details");
            // The first failing property of each pattern.
            for (pattern, schema) in patterns {
                let first = doc.iter().find(|element| {
                    pattern.is_match(element.key()).unwrap_or(false) && schema.fails(element.value())
                });
                let Some(element) = first else { continue };
                let mut failing = list.document();
                failing.append("propertyName", element.key());
                put_annotations(schema, &mut failing);
                failing.append("regexMatched", pattern.pattern());
                put_details(room, schema, element.value(), &mut failing);
            }
        }
        Rule::AdditionalProperties { names, patterns, allowed } => {
            let mut failing = doc.iter().filter(|element| {
                is_additional(element, names, patterns).unwrap_or(false)
                    && matches!(allowed.holds(element.value()), Ok(false))
            });
            match allowed {
                Allowed::None => {
                    put_specified(room, rule, schema, out);
                    let mut list = out.array("additionalProperties");
                    failing.for_each(|element| _ = list.push(element.key()));
                }
                Allowed::If(schema) => {
                    put_annotations(schema, out);
                    out.append("reason", "at least one additional property did not match the subschema");
                    if let Some(element) = failing.next() {
                        out.append("failingProperty", element.key());
                        put_details(room, schema, element.value(), out);
                    }
                }
            }
        }
        Rule::Required(names) => {
            put_specified(room, rule, schema, out);
            // mongod keeps required names sorted.
            let mut missing = missing(names, doc);
            missing.sort_unstable();
            put_missing(&missing, out);
        }
        Rule::MinProperties(_) | Rule::MaxProperties(_) => {
            put_specified(room, rule, schema, out);
            out.append("reason", "specified number of properties was not satisfied");
            out.append("numberOfProperties", doc.count() as i32);
        }
        Rule::Dependencies(dependencies) => {
            let source = schema.source().get("dependencies").and_then(|source| source.as_doc());
            source.iter().for_each(|source| put_texts(*source, out));
            let mut list = out.array("failingDependencies");
            let failing = |(name, dependency): &&(Box<str>, Dependency)| {
                matches!(has_property(doc, name), Ok(true)) && matches!(dependency.holds(doc), Ok(false))
            };
            for (name, dependency) in dependencies.iter().filter(failing) {
                let mut entry = list.document();
                entry.append("conditionalProperty", &**name);
                match dependency {
                    Dependency::Properties(names) => put_missing(&missing(names, doc), &mut entry),
                    Dependency::Schema(schema) => {
                        put_details(room, schema, Value::Document(doc), &mut entry);
                    }
                }
            }
        }
        _ => return false,
    }
    true
}

fn missing<'n>(names: &'n [Box<str>], doc: RawDoc<'_>) -> Vec<&'n str> {
    names.iter().map(|name| &**name).filter(|name| matches!(has_property(doc, name), Ok(false))).collect()
}

fn put_missing(names: &[&str], out: &mut Writer<'_>) {
    let mut list = out.array("missingProperties");
    names.iter().for_each(|name| _ = list.push(*name));
}

/// Rules about arrays; false for others.
fn put_array_rule(
    room: &Room,
    rule: &Rule,
    schema: &Schema,
    array: RawDoc<'_>,
    out: &mut Writer<'_>,
) -> bool {
    let considered = Value::Array(array);
    match rule {
        Rule::MinItems(_) | Rule::MaxItems(_) => {
            put_specified(room, rule, schema, out);
            out.append("reason", "array did not match specified length");
            if room.has_value(considered) {
                out.append("consideredValue", considered);
            }
            out.append("numberOfItems", array.count() as i32);
        }
        Rule::UniqueItems => {
            put_specified(room, rule, schema, out);
            out.append("reason", "found a duplicate item");
            if room.has_value(considered) {
                out.append("consideredValue", considered);
            }
            let duplicated = duplicate(array).ok().flatten().unwrap_or(Value::Missing);
            if room.has_value(duplicated) {
                out.append("duplicatedValue", duplicated);
            }
        }
        Rule::Items(schema) => {
            put_annotations(schema, out);
            out.append("reason", "At least one item did not match the sub-schema");
            put_first_item(room, schema, array, 0, out);
        }
        Rule::ItemsEach(schemas) => {
            let mut list = out.array("details");
            // Here the index is a long, and the schemas' titles are not told.
            for (index, (item, schema)) in (0i64..).zip(array.values().zip(schemas)) {
                if schema.fails(item) {
                    let mut failing = list.document();
                    failing.append("itemIndex", index);
                    put_details(room, schema, item, &mut failing);
                }
            }
        }
        Rule::AdditionalItems { from, allowed: Allowed::None } => {
            put_specified(room, rule, schema, out);
            out.append("reason", "found additional items");
            let mut list = out.array("additionalItems");
            array
                .values()
                .skip(*from)
                .take_while(|item| room.has_value(*item))
                .for_each(|item| _ = list.push(item));
        }
        Rule::AdditionalItems { from, allowed: Allowed::If(schema) } => {
            put_annotations(schema, out);
            out.append("reason", "At least one additional item did not match the sub-schema");
            put_first_item(room, schema, array, *from, out);
        }
        _ => return false,
    }
    true
}

fn put_first_item(room: &Room, schema: &Schema, array: RawDoc<'_>, from: usize, out: &mut Writer<'_>) {
    let failing = (0i32..).zip(array.values()).skip(from).find(|(_, item)| schema.fails(*item));
    if let Some((index, item)) = failing {
        out.append("itemIndex", index);
        put_details(room, schema, item, out);
    }
}
