"""Every published method side by side, as slots of the placement equation (:mod:`.spec`)."""

from __future__ import annotations

from dataclasses import replace

from fairseq_lnplace.placements import depth
from fairseq_lnplace.placements.spec import ONE, ZERO, Gains, Layer, Placement, Scale, Slots, of_option

POST = Slots(add_norm=True)
PRE = Slots(in_norm=True)
IN_OUT = Slots(in_norm=True, out_norm=True)
HYBRID = Slots(qkv_norm="head", add_norm=True)
HYBRID_IN = Slots(in_norm=True, qkv_norm="head")
HYBRID_WIDE = Slots(qkv_norm="width", add_norm=True)
NORMFORMER = Layer(replace(IN_OUT, head_scale=True), PRE, replace(PRE, inner_norm=True))
LEARNED = Scale(learned="vector")
ADMIN_CODE = Gains(
    query=depth.fused_qkv_gain, key=depth.fused_qkv_gain, value=depth.fused_qkv_gain, cross_attention=False
)
TFIXUP = Gains.of_branch(depth.tfixup_gain, embedding=depth.tfixup_embedding_gain)

NO_BLEU = "language models only; no BLEU published"
EVERY_SUBLAYER = "encoder-decoder form: the same slots around cross-attention"

METHODS: tuple[Placement, ...] = (
    Placement(
        "postln",
        "Post-LN",
        "Vaswani et al. 2017, Attention Is All You Need, 1706.03762",
        Layer.same(POST),
        needs_warmup=True,
        results="IWSLT14 De-En 6+6 35.64 (5 seeds); WMT14 En-De 6+6 27.80; fails at 12+12",
    ),
    Placement(
        "preln",
        "Pre-LN without final norm",
        "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, 2002.04745",
        Layer.same(PRE),
        extension="an ablation of Pre-LN: logits grow with depth",
        results="none published",
    ),
    Placement(
        "preln_final",
        "Pre-LN",
        "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, 2002.04745",
        Layer.same(PRE),
        final_norm=True,
        results="IWSLT14 De-En 6+6 35.50 (5 seeds); WMT14 En-De 6/12/18 layers 27.27/28.26/28.38",
    ),
    Placement(
        "admin",
        "Admin, profiled",
        "Liu et al. 2020, Understanding the Difficulty of Training Transformers, 2004.08249",
        Layer.same(replace(POST, skip_scale=Scale(learned="vector", profiled=True))),
        options=("admin_profile_batches", "admin_form"),
        form_option="admin_form",
        forms={"authors": {"gains": ADMIN_CODE}},
        needs_warmup=True,
        paper_differs="the paper sums the variances of the branches alone; the code's chain, followed here, starts at "
        "1 and folds in the embedding's variance; its encoder starts q, k, v smaller by sqrt(2), as one fused matrix: "
        "--admin-form authors",
        extension="padding is left out of the variance, ranks are averaged, and the profile is taken in the first "
        "training forward instead of a run of its own",
        results="WMT14 En-De 6/12/18 layers 27.90/28.58/29.03; IWSLT14 De-En 6+6 35.67 (5 seeds)",
    ),
    Placement(
        "admin_analytic",
        "Admin, analytic",
        "admin-torch, Liu et al. 2020, 2004.08249",
        Layer.same(replace(POST, skip_scale=Scale(depth.admin_analytic_omega, learned="vector"))),
        needs_warmup=True,
        results="WMT14 En-De 6/18/100 layers 27.84/28.91/29.65",
    ),
    Placement(
        "deepnorm",
        "DeepNorm",
        "Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers, 2203.00555",
        Layer.same(replace(POST, skip_scale=Scale(depth.deepnorm_alpha))),
        gains=Gains.of_branch(depth.deepnorm_beta),
        options=("deepnorm_form",),
        form_option="deepnorm_form",
        forms={"torchscale": {"gains": Gains.of_branch(depth.deepnorm_beta_torchscale)}},
        needs_warmup=True,
        paper_differs="the paper's Xavier with gain beta is followed; torchscale divides whatever initialisation is "
        "there, biases included, and has 1.15 for 0.87 in the encoder's beta: --deepnorm-form torchscale",
        results="WMT17 En-De 100+100 28.9; IWSLT14 De-En 6+6/12+12 35.34/35.39",
    ),
    Placement(
        "realformer",
        "RealFormer",
        "He et al. 2020, RealFormer: Transformer Likes Residual Attention, 2012.11747",
        Layer.same(POST),
        residual_scores=True,
        mean_scores=of_option("realformer_mean"),
        options=("realformer_mean",),
        needs_warmup=True,
        results="WMT14 En-De 6/12/18 layers 28.17/29.06/29.35, on top of Admin",
    ),
    Placement(
        "resi_dual",
        "ResiDual",
        "Xie et al. 2023, ResiDual: Transformer with Dual Residual Connections, 2304.14802",
        Layer.same(POST),
        final_norm=True,
        final_norm_eps=1e-7,
        second_stream=of_option("resi_dual_scale"),
        options=("resi_dual_scale",),
        paper_differs="the paper leaves the second stream's start open; the code's scaled embedding is followed",
        results="IWSLT14 De-En 6+6/12+12 35.63/36.09; without warm-up 35.76/35.57",
    ),
    Placement(
        "b2t",
        "B2T connection",
        "Takase et al. 2023, B2T Connection, 2206.00330",
        replace(Layer.same(POST), feed_forward=replace(POST, layer_skip=True)),
        gains=Gains.of_layer(depth.b2t_gain),
        options=("b2t_rescaled_init",),
        needs_warmup=True,
        paper_differs="the released code also scales every layer matrix by 1/sqrt(layers): --b2t-rescaled-init",
        results="WMT En-De newstest2010-16 6+6/18+18 26.53/27.30",
    ),
    Placement(
        "sandwich",
        "Sandwich-LN",
        "Ding et al. 2021, CogView, 2105.13290",
        Layer.same(IN_OUT),
        final_norm=True,
        paper_differs="CogView normalises after the branch's dropout, here before it; its N(0, 0.02/sqrt(2L)) output "
        "matrices are left out",
        extension=EVERY_SUBLAYER,
        results="text to image only; no BLEU published",
    ),
    Placement(
        "subln",
        "Sub-LN (Magneto)",
        "Wang et al. 2022, Foundation Transformers, 2210.06423",
        Layer(replace(PRE, inner_norm=True), PRE, replace(PRE, inner_norm=True)),
        final_norm=True,
        gains=Gains.of_branch(depth.subln_gamma, cross_attention=False),
        paper_differs="the paper's Xavier base is followed; torchscale multiplies whatever initialisation is there",
        results="OPUS-100 18+18: 0.5 over Pre-LN",
    ),
    Placement(
        "normformer",
        "NormFormer",
        "Shleifer et al. 2021, NormFormer, 2110.09456",
        NORMFORMER,
        final_norm=True,
        options=("normformer_resscale",),
        form_option="normformer_resscale",
        forms={
            "True": {
                "layer": replace(NORMFORMER, feed_forward=replace(PRE, inner_norm=True, skip_scale=LEARNED)),
            }
        },
        first_form={"normformer_resscale": True},
        changed="its learned scale of the feed-forward's skip (ResScale) was always there",
        paper_differs="heads are scaled before the output projection as in the paper; fairseq scales after it; "
        "ResScale is no part of the named method, and its equation is the code's: --normformer-resscale",
        extension="encoder form: as the decoder's; cross-attention stays Pre-LN",
        results=NO_BLEU,
    ),
    Placement(
        "rezero",
        "ReZero",
        "Bachlechner et al. 2020, ReZero is All You Need, 2003.04887",
        Layer.same(Slots(branch_scale=Scale(ZERO, learned="layer"))),
        results="IWSLT14 De-En about 33.7 to 34.7 (Admin's recipes)",
    ),
    Placement(
        "tfixup",
        "T-Fixup",
        "Huang et al. 2020, Improving Transformer Optimization Through Better Initialization, ICML 2020",
        Layer.same(Slots()),
        gains=TFIXUP,
        options=("tfixup_form",),
        form_option="tfixup_form",
        forms={"authors": {"gains": replace(TFIXUP, query=depth.half_variance, key=depth.half_variance)}},
        paper_differs="the code multiplies v by sqrt(2) to undo fairseq's gain, needless on an Xavier base, and leaves "
        "that gain, 1/sqrt(2), on q and k: --tfixup-form authors; it scales an unshared decoder embedding by the "
        "decoder's depth; here the encoder's depth holds for both",
        extension="a single stack uses its own side's constants",
        results="IWSLT14 De-En 35.73; WMT En-De newstest2010-16 6+6/18+18 26.43/26.94",
    ),
    Placement(
        "periln",
        "Peri-LN",
        "Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture, 2502.02732",
        Layer.same(IN_OUT),
        embedding_norm=True,
        final_norm=True,
        options=("periln_form",),
        form_option="periln_form",
        forms={"plain_embedding": {"embedding_norm": False}},
        first_form={"periln_form": "embedding_norm"},
        paper_differs="a norm on the embedding is optional in the paper: --periln-form plain_embedding leaves it out",
        extension=EVERY_SUBLAYER,
        results=NO_BLEU,
    ),
    Placement(
        "mixln",
        "Mix-LN",
        "Li et al. 2024, Mix-LN: Unleashing the Power of Deeper Layers, 2412.13795",
        Layer.same(PRE),
        lower_layer=Layer.same(POST),
        lower_layers=depth.mixln_post_layers,
        final_norm=True,
        options=("mixln_post_fraction",),
        needs_warmup=True,
        extension="encoder-decoder form: the fraction is taken of each stack",
        results=NO_BLEU,
    ),
    Placement(
        "lnscaling",
        "LayerNorm-Scaling",
        "Sun et al. 2025, The Curse of Depth in Large Language Models, 2502.05795",
        Layer.same(replace(PRE, in_scale=depth.inverse_sqrt_layer)),
        final_norm=True,
        paper_differs="1/sqrt(l) is applied to the norm's output, weight and bias included",
        extension=EVERY_SUBLAYER,
        results=NO_BLEU,
    ),
    Placement(
        "hybridnorm",
        "HybridNorm",
        "Zhuo et al. 2025, HybridNorm, 2503.04598",
        Layer(HYBRID, HYBRID, Slots()),
        final_norm=True,
        options=("hybridnorm_form",),
        form_option="hybridnorm_form",
        forms={
            "star": {"lower_layer": Layer(HYBRID_IN, HYBRID_IN, PRE), "lower_layers": ONE},
            "full_width": {"layer": Layer(HYBRID_WIDE, HYBRID_WIDE, Slots())},
        },
        first_form={"hybridnorm_form": "full_width"},
        changed="its norms of queries, keys and values were over the full width, not over each head",
        paper_differs="the equation is the released code's, the paper's was not read; its RMSNorm and its Megatron "
        "initialisation are left out; HybridNorm* has another first layer: --hybridnorm-form star",
        extension="cross-attention is normed as self-attention",
        results=NO_BLEU,
    ),
    Placement(
        "branchnorm",
        "BranchNorm",
        "Liu et al. 2023, BranchNorm: Robustly Scaling Extremely Deep Transformers, 2305.02790",
        Layer.same(replace(POST, branch_scale=Scale(scheduled="branchnorm_updates"))),
        options=("branchnorm_updates",),
        paper_differs="no code is released; the equation with min(1, t/T) is read in another paper (ProRes, "
        "2603.05369); T, whether t starts at 0 or 1, and any initialisation of its own are not verified",
        results="WMT14 En-Fr: 0.6 over DeepNorm",
    ),
    Placement(
        "dsinit",
        "DS-Init",
        "Zhang et al. 2019, Improving Deep Transformer with Depth-Scaled Initialization, 1908.11365",
        Layer.same(POST),
        gains=Gains.of_layer(depth.dsinit_gain),
        options=("dsinit_exponent",),
        needs_warmup=True,
        paper_differs="the code's bound shrinks like l^(-1/4): --dsinit-exponent 0.25",
        results="IWSLT14 De-En 6/12 layers 34.41/35.63, with merged attention",
    ),
    Placement(
        "layerscale",
        "LayerScale",
        "Touvron et al. 2021, Going deeper with Image Transformers, 2103.17239",
        Layer.same(replace(PRE, branch_scale=Scale(depth.layerscale_lambda, learned="vector"))),
        final_norm=True,
        options=("layerscale_init",),
        extension=EVERY_SUBLAYER,
        results="image classification only; no BLEU published",
    ),
    Placement(
        "dlcl",
        "DLCL",
        "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation, 1906.01787",
        Layer.same(PRE),
        final_norm=True,
        history="pre",
        options=("dlcl_form",),
        form_option="dlcl_form",
        forms={"post": {"layer": Layer.same(POST), "history": "post", "final_norm": False}},
        results="WMT16 En-De: pre form 30+6 29.3, post form 25+6 29.2",
    ),
    Placement(
        "gpas",
        "GPAS",
        "Chen et al. 2025, Gradient-Preserving Activation Scaling, 2506.22049",
        Layer.same(replace(PRE, gate=True)),
        final_norm=True,
        extension=EVERY_SUBLAYER,
        results=NO_BLEU,
    ),
    Placement(
        "keel",
        "KEEL",
        "Chen & Wei 2026, Post-LayerNorm Is Back, 2601.19895",
        Layer.same(Slots(in_norm=True, add_norm=True, skip_scale=Scale(depth.keel_alpha))),
        lower_layer=Layer.same(PRE),
        lower_layers=ONE,
        options=("keel_form",),
        form_option="keel_form",
        forms={"uniform": {"lower_layer": None}},
        first_form={"keel_form": "uniform"},
        changed="its first layer was as the others, and is plain Pre-LN in the paper",
        paper_differs="the paper writes its norms without bias and says nothing of a final norm",
        extension="encoder-decoder form: the first layer of each stack is Pre-LN, cross-attention too, which has the "
        "same slots in the others",
        results=NO_BLEU,
    ),
    Placement(
        "respostnorm",
        "Res-post-norm",
        "Liu et al. 2021, Swin Transformer V2, 2111.09883",
        Layer.same(Slots(out_norm=True)),
        final_norm=True,
        paper_differs="Swin V2 starts the norms' gains at 0; here at 1, as OLMo 2 (2501.00656)",
        extension=EVERY_SUBLAYER,
        results="image and language models only; no BLEU published",
    ),
)
